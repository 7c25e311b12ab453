"""How far from the truth is too far: the limits of every test, each with the number that chose it.

The idea: limits are in units of measured noise, so they hold for every dtype, size and conditioning; only
float32 gets more room, because there the accuracy of math libraries matters as much as rounding does.
Limits chosen elsewhere may be too tight here (another math library, another accelerator), so what `calibrate` measured
on this machine raises them; its file lies in the user's cache folder and is read if it is there.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torchsleuth.core.protocol.files import write_whole

SPREAD = 1.8
"""Limit on z over sqrt(2 ln n), the expected maximum of n normal numbers. Healthy seeds 0-59: at most 1.4."""

SPREAD_PRECISE = 2.6
"""The same for float32 and float64. Healthy seeds 0-59 reach 1.9 (eager) and 1.7 (compiled)."""

SMALL = 1024
"""Leaves with fewer elements are treated as if they had this many: their noise is measured no better."""

CALIBRATION_MARGIN = 1.5
"""Factor over the largest healthy z that a calibration on this machine has seen."""


@dataclass(frozen=True)
class VerdictLimits:
    """Every limit for one leaf."""

    z: float
    """Largest distance from the truth, in noise units, of any element."""
    guard: float
    """How many times eager's own distance the compiled one must exceed as well."""
    bias_z: float = 12.0
    """Significance of a common scale or shift. Healthy seeds 0-59: at most 8.7; faults at z < 7: 9 to 64."""
    bias_size: float = 0.2
    """Least common error in noise units per element, so that large tensors do not alarm at harmless biases."""
    lane_z: float = 15.0
    """Significance of the mean error of one row or lane. Healthy seeds 0-59: at most 8.1 (eager: 14.9)."""
    lane_size: float = 1.0
    """Least mean error of a row or lane, in noise units."""
    rmse: float = 2.5
    """Root mean square error over the largest of the noisy runs. Healthy seeds 0-59: at most 1.8."""


def limits_for(dtype: torch.dtype, numel: int, healthy_z: float | None = None) -> VerdictLimits:
    """The limits for a leaf; `healthy_z` is what a calibration measured for the device and dtype.

    Example: `limits_for(torch.bfloat16, 2048).z == 7.03`, rounded.
    """
    expected = math.sqrt(2 * math.log(max(numel, SMALL)))
    floor = 0.0 if healthy_z is None else CALIBRATION_MARGIN * healthy_z
    if torch.finfo(dtype).eps < 1e-5:
        # Vector math libraries differ by an ulp in the same direction for all elements: a bias, not a fault.
        return VerdictLimits(
            max(SPREAD_PRECISE * expected, floor), 2.0, bias_size=1.0, lane_size=2.0, rmse=3.5
        )
    return VerdictLimits(max(SPREAD * expected, floor), 1.5)


SCHEMA = 1


@dataclass(frozen=True)
class Quantiles:
    """Distances from the truth over healthy graphs, in noise units, and how often `judge` raised an alarm."""

    graphs: int
    false_alarms: int
    z_median: float
    z_99: float
    z_max: float
    eager_z_max: float


@dataclass(frozen=True)
class Calibration:
    """Quantiles by `device/dtype`, and where they were measured."""

    name: str
    torch_version: str
    measured: dict[str, Quantiles]

    def healthy_z(self, device: str, dtype: torch.dtype) -> float | None:
        """The largest healthy z seen for a device and dtype, `None` when it was not measured."""
        found = self.measured.get(f"{device}/{str(dtype).removeprefix('torch.')}")
        return found.z_max if found is not None else None

    def to_json(self) -> dict[str, Any]:
        """Plain values; `calibration_from` reads them back."""
        return {"schema": SCHEMA, **dataclasses.asdict(self)}


def calibration_from(document: dict[str, Any]) -> Calibration:
    """The calibration a JSON document holds; raises `ValueError` for another schema."""
    if document.get("schema") != SCHEMA:
        raise ValueError(
            f"calibration has schema {document.get('schema')!r}, this torchsleuth reads {SCHEMA}; run calibrate again"
        )
    measured = {key: Quantiles(**value) for key, value in document["measured"].items()}
    return Calibration(str(document["name"]), str(document["torch_version"]), measured)


def calibration_path() -> Path:
    """Where the calibration lies: `$TORCHSLEUTH_CALIBRATION`, or torchsleuth's folder in the user's cache."""
    chosen = os.environ.get("TORCHSLEUTH_CALIBRATION")
    if chosen:
        return Path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "torchsleuth" / "calibration.json"


def save_calibration(calibration: Calibration, path: Path | None = None) -> Path:
    """Write a calibration; returns the file."""
    file = path or calibration_path()
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(calibration.to_json(), indent=1))
    return file


def load_calibration(path: Path | None = None) -> Calibration | None:
    """The stored calibration if there is a readable one for this version of torch, otherwise None."""
    file = path or calibration_path()
    try:
        found = calibration_from(json.loads(file.read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if found.torch_version == torch.__version__ else None


def machine_name() -> str:
    """What the quantiles were measured on, in words: processor and accelerator."""
    accelerator = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no accelerator"
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, {accelerator}, torch {torch.__version__}"
