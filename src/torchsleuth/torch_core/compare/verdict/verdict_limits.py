"""How far from the truth is too far: the limits of every test, each with the number that chose it.

The idea: limits are in units of measured noise, so they hold for every dtype, size and conditioning; only
float32 gets more room, because there the accuracy of math libraries matters as much as rounding does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

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
