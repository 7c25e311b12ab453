"""What healthy graphs look like on this machine: noise quantiles per device and dtype, kept as JSON.

The idea: limits chosen elsewhere may be too tight here (another math library, another accelerator), so what
was measured here raises them. The file lies in the user's cache folder and is read if it is there.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torchsleuth.core.protocol.files import write_whole

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
        stamp = file.stat().st_mtime_ns
    except OSError:
        return None
    return _read(str(file), stamp)


@functools.lru_cache(maxsize=4)
def _read(file: str, stamp: int) -> Calibration | None:
    try:
        found = calibration_from(json.loads(Path(file).read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if found.torch_version == torch.__version__ else None


def machine_name() -> str:
    """What the quantiles were measured on, in words: processor and accelerator."""
    accelerator = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no accelerator"
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, {accelerator}, torch {torch.__version__}"
