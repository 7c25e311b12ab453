"""Patterns in the errors of one leaf that no single element gives away: a common bias, one wrong row or lane.

The idea: a mean over many elements has far less noise than one element, and noisy runs show how much less;
a mean error many times larger than theirs is a fault even where every element looks innocent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from torchsleuth.torch_core.compare.verdict.spread import thinned


@dataclass(frozen=True)
class Errors:
    """One leaf in float64: truth, noise scale, and the errors of compiled and eager."""

    truth: torch.Tensor
    noise: torch.Tensor
    bare: torch.Tensor
    compiled: torch.Tensor
    eager: torch.Tensor
    samples: tuple[torch.Tensor, ...]
    """Of each noisy run, the elements at `thinned`."""
    usable: torch.Tensor
    steady: torch.Tensor
    """Those of the usable ones that no decision within rounding of its corner moves."""


@dataclass(frozen=True)
class Sample:
    """Errors over noise for a part of a leaf, flat: compiled, eager, and one row per noisy run."""

    compiled: torch.Tensor
    eager: torch.Tensor
    noisy: torch.Tensor
    truth: torch.Tensor
    shape: tuple[int, ...]


SMALLEST = 64
"""Fewer elements than this have no meaningful mean."""


def whitened(errors: Errors) -> Sample | None:
    """The errors of a leaf over their noise; `None` for a leaf too small to have patterns."""
    truth = errors.truth
    if truth.numel() < SMALLEST or not errors.samples:
        return None
    cut = thinned(truth)
    weight = torch.where(errors.steady[cut], 1.0 / errors.bare[cut], 0.0)
    rows = torch.empty((len(errors.samples) + 3, *weight.shape), dtype=truth.dtype, device=truth.device)
    thin = (errors.compiled[cut], errors.eager[cut], truth[cut], *errors.samples)
    for row, values in zip(rows, thin):
        torch.mul(values, weight, out=row)
    if not math.isfinite(float(rows.sum())):
        rows.nan_to_num_(0.0, 0.0, 0.0)
    flat = rows.view(len(rows), -1)
    return Sample(flat[0], flat[1], flat[3:], flat[2], tuple(weight.shape))


LEAST_SPREAD = 0.6
"""Noise of a mean is at least this share of what independent errors give: rounding is not always random."""


def bias(sample: Sample) -> tuple[float, float, float, str]:
    """The strongest common error: its size per element, its significance, eager's, and its name."""
    count = sample.compiled.numel()
    best = (0.0, 0.0, 0.0, "shifted")
    for name, direction in (("scaled", sample.truth), ("shifted", torch.ones_like(sample.truth))):
        length = direction.norm()
        if float(length) == 0.0 or not math.isfinite(float(length)):
            continue
        along = direction / length
        spread = torch.clamp((sample.noisy @ along).square().mean().sqrt(), min=LEAST_SPREAD)
        amount = (sample.compiled @ along).abs()
        significance = float(amount / spread)
        if significance > best[1]:
            eager = float((sample.eager @ along).abs() / spread)
            best = (float(amount) / math.sqrt(count), significance, eager, name)
    return best


def worst_lane(sample: Sample) -> tuple[float, float, float, int, int] | None:
    """The row or lane with the most significant mean error: significance, size, eager's, dimension, index."""
    dims = len(sample.shape)
    if dims < 2:
        return None
    best: tuple[float, float, float, int, int] | None = None
    for axis in sorted({0, 1, dims - 1}):
        others = [d for d in range(dims) if d != axis]
        count = sample.compiled.numel() // max(sample.shape[axis], 1)
        if count < 8 or sample.shape[axis] < 2:
            continue
        mean, eager = (v.view(sample.shape).mean(others) for v in (sample.compiled, sample.eager))
        noisy = sample.noisy.view(-1, *sample.shape).mean([d + 1 for d in others])
        spread = noisy.square().mean(0).sqrt()
        floor = max(float(spread.square().mean().sqrt()) * 0.7, LEAST_SPREAD / math.sqrt(count))
        spread = spread.clamp_min(floor)
        where = int((mean.abs() / spread).argmax())
        found = float(mean[where].abs() / spread[where])
        if best is None or found > best[0]:
            best = (found, float(mean[where].abs()), float((eager.abs() / spread).max()), axis, where)
    return best
