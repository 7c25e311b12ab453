"""One value of a graph's result, and how far noisy runs of the graph lie from its truth, folded together run by run.

A run is as large as all results in float64. So none is kept: of float results the mean square of the differences, how
far the furthest lay, and a thinned-out sample of each run; of other results which elements changed at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchsleuth.torch_core.compare.reference.trees import is_inexact

SAMPLE = 1 << 16
"""Elements of a run that are kept for the row, lane and bias tests; more would only find harmless biases."""

USUAL, AMPLIFIED, REVERSED, EQUIVALENT = "usual", "amplified", "reversed", "equivalent"
"""Runs with rounding noise, with stronger noise, ones that decide comparisons the other way, and eager's other ways."""

AMPLIFICATION = 8.0
"""How much stronger the second kind of noise is: it finds decisions that lie within 8 rounding errors."""


def thinned(tensor: torch.Tensor) -> Any:
    """An index that keeps every lane and thins out the first dimension to `SAMPLE` elements.

    >>> thinned(torch.ones(4)), thinned(torch.ones(1 << 18))
    (Ellipsis, slice(None, None, 4))
    """
    if tensor.numel() <= SAMPLE:
        return ...
    step = math.ceil(tensor.numel() / SAMPLE)
    return slice(None, None, step if tensor.dim() == 1 else min(tensor.shape[0], step))


def sampled(shape: torch.Size) -> int:
    """How many elements `thinned` keeps of a tensor.

    >>> sampled(torch.Size([1 << 18])), sampled(torch.Size([2, 1 << 18]))
    (65536, 262144)
    """
    tensor = torch.empty(shape, device="meta")
    return tensor[thinned(tensor)].numel()


def as_real(value: torch.Tensor) -> torch.Tensor:
    """A float or complex tensor as dense float64, complex numbers as pairs."""
    value = value.detach()
    if value.layout != torch.strided:
        value = value.to_dense()
    if value.is_complex():
        return torch.view_as_real(value.resolve_conj().to(torch.complex128))
    return value.double()


def largest(value: torch.Tensor) -> float:
    """The largest magnitude among the finite elements; 0 where there is none.

    >>> largest(torch.tensor([1.0, -3.0, math.inf]))
    3.0
    """
    sizes = value.detach().abs().nan_to_num(0.0, 0.0, 0.0)
    return float(sizes.max()) if sizes.numel() else 0.0


class Spread:
    """What the noisy runs of one leaf showed; `add` each run, then read.

    >>> seen = Spread(torch.zeros(2, dtype=torch.float64), torch.float32)
    >>> seen.add(torch.tensor([3.0, 0.0]), USUAL); seen.add(torch.tensor([4.0, 1.0]), USUAL)
    >>> seen.square
    tensor([12.5000,  0.5000])
    """

    def __init__(self, truth: Any, dtype: torch.dtype | None) -> None:
        self.runs = 0
        self.samples: list[torch.Tensor] = []
        """Of runs with usual noise and of eager's other ways: how far each lay, thinned out."""
        self.values: list[tuple[str, Any]] = []
        """Kind of run and what came out, where there is no tensor to compare with."""
        self.largest = 0.0
        """The furthest that any element of any run lay from the truth; of decisions, how many changed at most."""
        self.ever_finite: torch.Tensor | None = None
        """Where some run was finite; None where the truth is finite everywhere, so that nobody asks."""
        self.flips: dict[str, torch.Tensor] = {}
        self.most_flips = 0
        self._reach: dict[str, torch.Tensor] = {}
        self._size: torch.Tensor | None = None
        self._truth = truth
        self._finite: bool | None = None
        # A shorter result needs no more than float32 for the size of its errors; float64 has a wider range.
        self._kept = torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32

    @property
    def square(self) -> torch.Tensor | None:
        """The mean square of the differences; None without any run."""
        return None if self._size is None else self._size.square()

    def reach(self, kind: str) -> torch.Tensor | None:
        """How far the furthest run of a kind lay; None without such a run."""
        return self._reach.get(kind)

    def to_cpu(self) -> None:
        """Move what was seen to the CPU."""
        self.samples = [sample.cpu() for sample in self.samples]
        self._reach = {kind: reach.cpu() for kind, reach in self._reach.items()}
        self.flips = {kind: flips.cpu() for kind, flips in self.flips.items()}
        self._size = None if self._size is None else self._size.cpu()
        self.ever_finite = None if self.ever_finite is None else self.ever_finite.cpu()

    def add(self, value: Any, kind: str) -> None:
        """Fold in one run. The value of a float tensor is used up."""
        truth = self._truth
        if not isinstance(value, torch.Tensor) or not isinstance(truth, torch.Tensor):
            self.values.append((kind, value))
        elif value.shape == truth.shape and not value.is_quantized:
            if is_inexact(value):
                self._add_floats(self._difference(value), kind)
            else:
                self._add_decisions(value.to(truth.device) != truth, kind)

    def _add_floats(self, off: torch.Tensor, kind: str) -> None:
        if self.ever_finite is None and kind == USUAL and not self._truth_is_finite():
            self.ever_finite = torch.zeros_like(off, dtype=torch.bool)
        if kind in (USUAL, EQUIVALENT):
            self.samples.append(off[thinned(off)].clone())
        sizes = off.abs_()
        far = float(sizes.max()) if sizes.numel() else 0.0
        finite = math.isfinite(far)
        if kind == USUAL:
            self.runs += 1
            if self.ever_finite is not None:
                self.ever_finite |= torch.isfinite(off)
            share = self.runs
            now = sizes.to(self._kept)
            if self._size is None:
                self._size = now
            else:
                # Root of a mean of squares without squaring, which float32 has no room for.
                self._size.mul_(math.sqrt((share - 1) / share))
                torch.hypot(self._size, now.mul_(math.sqrt(1 / share)), out=self._size)
        else:
            now = (sizes if finite else sizes.nan_to_num_(0.0, 0.0, 0.0)).to(self._kept)
            known = self._reach.get(kind)
            self._reach[kind] = now if known is None else torch.maximum(known, now, out=known)
        if not finite:
            sizes = sizes.nan_to_num(0.0, 0.0, 0.0)
            far = float(sizes.max())
        self.largest = max(self.largest, far)

    def _difference(self, value: torch.Tensor) -> torch.Tensor:
        base = self._truth
        if value.layout != torch.strided:
            value, base = as_real(value), as_real(base)
        if not self._truth_is_finite():
            # Zeros where the truth is not finite, so that a run's difference there is finite if the run is.
            base = torch.where(torch.isfinite(base), base, torch.zeros_like(base))
        # Reusing the run's own memory spares the page faults of a fresh block, which cost more than the subtraction.
        return as_real(value.sub_(base) if value.is_contiguous() else value - base)

    def _truth_is_finite(self) -> bool:
        if self._finite is None:
            self._finite = math.isfinite(float(as_real(self._truth).sum()))
        return self._finite

    def _add_decisions(self, flipped: torch.Tensor, kind: str) -> None:
        count = int(flipped.sum())
        self.largest = max(self.largest, float(count))
        place = USUAL if kind == USUAL else AMPLIFIED
        if kind == USUAL:
            self.most_flips = max(self.most_flips, count)
        known = self.flips.get(place)
        self.flips[place] = flipped if known is None else known.logical_or_(flipped)


@dataclass(frozen=True)
class Leaf:
    """One value of the result: its path, eager's value, the truth, and what the noisy runs gave."""

    path: str
    eager: Any
    truth: Any
    spread: Spread
    random: bool = False
    fallbacks: tuple[str, ...] = ()
    means_nothing: bool = False
    """Whether it is memory that nobody wrote, returned for a reason that does not apply here."""
    unwritten: torch.Tensor | None = None
    """Which elements come from memory that the graph asks for and does not write."""
    overflowing: tuple[str, ...] = ()
    """Nodes behind it of which rounding decides whether their format can hold them."""

    def on_cpu(self) -> Leaf:
        """The same leaf where there is more memory."""
        self.spread.to_cpu()
        return replace(self, eager=self.eager.cpu(), truth=self.truth.cpu())
