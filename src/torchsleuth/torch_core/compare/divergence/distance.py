"""How far a compiled value is from the truth, in what rounding explains; a few numbers for a tensor of any size.

The yardstick is eager's own distance from float64, and never less than one step of the dtype. It is coarse on purpose:
it says where to look. Whether a kernel is wrong is then judged with noise that is measured for it alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchsleuth.torch_core.compare.reference.trees import SMALL, is_inexact, pieces

FAR = 16.0
"""Beyond so many times what rounding explains, a value is worth a second look (as `verdict.tolerances`)."""


@dataclass(frozen=True)
class Distance:
    """How far a value is off, and how far rounding may move it, both by the largest element.

    `times` is the larger of the ratios by the largest element and by the root mean square. `made` counts elements that
    are not finite though eager's and float64's are, `lost` those that are not the infinity or NaN that both agree on.
    Of whole numbers `off` is how many differ.
    """

    off: float = 0.0
    noise: float = 0.0
    times: float = 0.0
    made: int = 0
    lost: int = 0

    @property
    def far(self) -> bool:
        """Whether rounding does not explain it.

        >>> Distance(off=1.0, noise=1e-7, times=1e7).far
        True
        """
        return self.times > FAR or self.made > 0 or self.lost > 0


def distance(compiled: torch.Tensor, eager: torch.Tensor, truth: Any, terms: float = 0.0) -> Distance:
    """How far `compiled` is from `truth` (float64), against how far `eager` is.

    `terms` is how large the terms are of which it is the sum: where they cancel, eager may be exact by chance.

    >>> distance(torch.ones(2), torch.zeros(2), torch.zeros(2, dtype=torch.float64)).far
    True
    """
    if not isinstance(truth, torch.Tensor) or truth.shape != eager.shape:
        truth = eager
    if compiled.numel() == 0:
        return Distance()
    if not is_inexact(eager):
        return _decisions(compiled, eager, truth)
    if eager.is_complex():
        compiled, eager, truth = (torch.view_as_real(t.resolve_conj()) for t in (compiled, eager, truth))
    return _floats(compiled, eager, truth, terms)


def _decisions(compiled: torch.Tensor, eager: torch.Tensor, truth: torch.Tensor) -> Distance:
    differ = int((compiled != eager).sum())
    # Near a tie rounding decides; how many ties there are, eager and float64 tell.
    open_ones = int((truth.to(eager.dtype) != eager).sum())
    allowed = max(open_ones, math.ceil(eager.numel() / 1000) if eager.numel() > 1000 else 0)
    times = 0.0 if differ == 0 else differ / max(allowed, 1 / (2 * FAR))
    return Distance(float(differ), float(allowed), times)


def _floats(compiled: torch.Tensor, eager: torch.Tensor, truth: torch.Tensor, terms: float) -> Distance:
    off = own = largest = off_square = own_square = square = 0.0
    made = lost = 0
    biggest = torch.finfo(eager.dtype).max
    for c, e, t in pieces(compiled, eager, truth, size=SMALL):
        t = t.double()
        # Widened first: a difference of two dtypes takes twice as long.
        rows = [(each.to(t.dtype, copy=True).sub_(t)).reshape(-1) for each in (c, e)] + [t.reshape(-1)]
        numbers = _largest_and_squares(rows)
        if not all(map(math.isfinite, numbers[:3])):
            finite = [torch.isfinite(each) for each in (c, e, t)]
            made += int((~finite[0] & finite[1] & finite[2] & (t.abs() < biggest / 2)).sum())
            lost += int((~finite[1] & ~finite[2] & (_kind(e) == _kind(t)) & (_kind(c) != _kind(e))).sum())
            usable = finite[0] & finite[1] & finite[2]
            numbers = _largest_and_squares([row.where(usable.reshape(-1), 0.0) for row in rows])
        off, own, largest = (max(pair) for pair in zip((off, own, largest), numbers[:3]))
        off_square, own_square, square = (
            old + new for old, new in zip((off_square, own_square, square), numbers[3:])
        )
    step = torch.finfo(eager.dtype).eps
    tiny = torch.finfo(eager.dtype).smallest_normal
    noise = max(own, step * largest, step * terms, tiny)
    count = eager.numel()
    rms_noise = max(math.sqrt(own_square / count), step * math.sqrt(square / count), step * terms, tiny)
    times = max(off / noise, math.sqrt(off_square / count) / rms_noise)
    return Distance(off, noise, times, made, lost)


def _largest_and_squares(rows: Sequence[torch.Tensor]) -> list[float]:
    """Of each row the largest magnitude, then of each the sum of squares; the device is waited for once."""
    ends = [end for row in rows for end in torch.aminmax(row)]
    numbers = torch.stack([*ends, *(row.dot(row) for row in rows)]).tolist()
    largest = [
        max(-low, high) for low, high in zip(numbers[0 : 2 * len(rows) : 2], numbers[1 : 2 * len(rows) : 2])
    ]
    return [*largest, *numbers[2 * len(rows) :]]


def _kind(value: torch.Tensor) -> torch.Tensor:
    """0 of what is finite, another number for each kind of what is not."""
    return torch.where(torch.isfinite(value), 0.0, torch.nan_to_num(value, nan=2.0, posinf=1.0, neginf=-1.0))


def checksum(value: torch.Tensor) -> int:
    """A number that differs where any bit of a tensor does, almost surely.

    >>> checksum(torch.zeros(3)) == checksum(torch.zeros(3))
    True
    """
    if value.numel() == 0:
        return 0
    bits = value.detach().contiguous().reshape(-1).view(torch.uint8)
    total = place = 0
    for piece in bits.split(8 * SMALL):
        words = torch.nn.functional.pad(piece, (0, -piece.numel() % 8)).view(torch.int64)
        # Odd multipliers, modulo 2**64: no word's contribution vanishes, and each place counts differently.
        factors = torch.arange(place, place + words.numel(), device=words.device).mul_(2).add_(1)
        total += int(factors.mul_(words).sum())
        place += words.numel()
    return total % 2**64
