"""Are two dense tensors of one shape and dtype close, and by how much not?

The idea: most pieces of healthy results differ by less than the absolute tolerance, which one
subtraction and one min-max decide; only a piece that fails this pays for the full rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from torchsleuth.torch_core.compare.reference.chunks import SMALL, pieces


@dataclass(frozen=True)
class Miss:
    """How far two tensors are apart: count of elements beyond, the largest difference and where it is."""

    beyond: int
    numel: int
    worst: float
    index: tuple[int, ...]

    def __str__(self) -> str:
        where = list(self.index)
        return (
            f"{self.beyond} of {self.numel} elements differ; largest difference {self.worst:.6g} at {where}"
        )


def is_inexact(tensor: torch.Tensor) -> bool:
    """Whether values of this dtype are rounded (floating point or complex)."""
    return tensor.is_floating_point() or tensor.is_complex()


def close(ref: torch.Tensor, res: torch.Tensor, tol: float, equal_nan: bool) -> bool:
    """Whether |ref - res| <= tol + tol * |res| everywhere; exact for integers and booleans.

    Example: `close(torch.ones(2), torch.ones(2) + 1e-6, 1e-4, False)`.
    """
    ref, res = _plain(ref), _plain(res)
    if not is_inexact(ref) and not is_inexact(res):
        return all(torch.equal(a, b) for a, b in pieces(ref, res))
    buffer: torch.Tensor | None = None
    for a, b in pieces(ref, res):
        if a.dtype == b.dtype and not a.is_complex():
            if buffer is None or buffer.shape != a.shape:
                buffer = torch.empty_like(a)
            torch.sub(a, b, out=buffer)
            low, high = torch.aminmax(buffer)
            # Not-a-number (also from inf - inf) fails this comparison and takes the full rule below.
            if max(-low.item(), high.item()) <= tol and not math.isnan(low.item()):
                continue
        for x, y in pieces(a, b, size=SMALL):
            if not torch.allclose(_wide(x), _wide(y), rtol=tol, atol=tol, equal_nan=equal_nan):
                return False
    return True


def miss(ref: torch.Tensor, res: torch.Tensor, tol: float, equal_nan: bool) -> Miss:
    """The numbers behind a failed `close`; reads both tensors once more."""
    ref, res = _plain(ref), _plain(res)
    exact = not is_inexact(ref) and not is_inexact(res)
    beyond, worst, worst_at = 0, -1.0, -1
    flat_ref, flat_res = ref.reshape(-1), res.reshape(-1)
    start = 0
    for a, b in pieces(flat_ref, flat_res, size=SMALL):
        if exact:
            bad = a != b
        else:
            bad = ~torch.isclose(_wide(a), _wide(b), rtol=tol, atol=tol, equal_nan=equal_nan)
        beyond += int(bad.sum())
        distance = torch.where(bad, (_double(a) - _double(b)).abs(), 0.0).nan_to_num(nan=math.inf)
        peak = float(distance.max())
        if bool(bad.any()) and peak > worst:
            worst, worst_at = peak, start + int(distance.argmax())
        start += a.numel()
    return Miss(beyond, ref.numel(), worst, unravel(max(worst_at, 0), tuple(ref.shape)))


def rmse(truth: torch.Tensor, value: torch.Tensor) -> float:
    """Root mean square of the difference, in float64, a piece at a time; 0 for empty tensors."""
    if truth.numel() == 0:
        return 0.0
    total = 0.0
    for a, b in pieces(_plain(truth), _plain(value), size=SMALL):
        total += float((_double(a) - _double(b)).abs().square().sum())
    return math.sqrt(total / truth.numel())


def cosine(ref: torch.Tensor, res: torch.Tensor) -> float:
    """Cosine of the angle between two tensors seen as vectors; 1 when both are zero."""
    dot = norm_ref = norm_res = 0.0
    for a, b in pieces(_plain(ref), _plain(res), size=SMALL):
        x, y = _double(a), _double(b)
        dot += float((x * y.conj()).real.sum()) if x.is_complex() else float((x * y).sum())
        norm_ref += float(x.abs().square().sum())
        norm_res += float(y.abs().square().sum())
    if norm_ref == 0.0 and norm_res == 0.0:
        return 1.0
    return dot / max(math.sqrt(norm_ref) * math.sqrt(norm_res), 1e-300)


def unravel(position: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index of a flat position; `unravel(5, (2, 3)) == (1, 2)`."""
    index = []
    for size in reversed(shape):
        index.append(position % size)
        position //= size
    return tuple(reversed(index))


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.resolve_conj().resolve_neg() if tensor.is_complex() else tensor


def _wide(piece: torch.Tensor) -> torch.Tensor:
    # float8 has no arithmetic; float16 and bfloat16 would round the tolerance itself.
    return piece.float() if piece.is_floating_point() and piece.dtype.itemsize < 4 else piece


def _double(piece: torch.Tensor) -> torch.Tensor:
    return piece.to(torch.complex128 if piece.is_complex() else torch.float64)
