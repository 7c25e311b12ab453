"""The arithmetic of Inductor's IR as torch functions: pointwise steps, reductions, scans.

One idea: most `ops.*` names are torch's own names with torch's own meaning; only the ones that are not are
written out. A reduction gets rows: the reduced axes are one last axis, and what it returns has lost it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchsleuth.torch_internals.inductor_ir.expressions import NotInterpretable


def _names(text: str) -> list[str]:
    return text.split()


_SAME_NAME = _names("""
abs exp exp2 expm1 sqrt relu minimum maximum cos sin lgamma erf cosh sinh acos acosh asin asinh atan2 atan atanh
copysign erfc erfinv frexp hypot log10 log2 ldexp nextafter logical_and logical_not logical_or logical_xor
bitwise_and bitwise_not bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift rsqrt log1p tan tanh sigmoid
signbit fmod log isinf isnan round floor sign trunc ceil neg reciprocal eq ne lt gt le ge add sub mul pow
remainder square digamma igamma igammac i0
""")

_SAME_NAME_IN_SPECIAL = _names("""
airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 erfcx gammainc gammaincc i0e i1 i1e log_ndtr modified_bessel_i0
modified_bessel_i1 modified_bessel_k0 modified_bessel_k1 ndtr ndtri scaled_modified_bessel_k0
scaled_modified_bessel_k1 spherical_bessel_j0 zeta chebyshev_polynomial_t chebyshev_polynomial_u
chebyshev_polynomial_v chebyshev_polynomial_w legendre_polynomial_p shifted_chebyshev_polynomial_t
shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v shifted_chebyshev_polynomial_w
hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l
""")


def _where(condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(condition.bool(), yes, no)


def _polygamma(order: Tensor, x: Tensor) -> Tensor:
    if order.numel() != 1:
        raise NotInterpretable("the loop takes polygamma of many orders")
    return torch.polygamma(int(order), x)


POINTWISE: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in _SAME_NAME},
    **{name: getattr(torch.special, name) for name in _SAME_NAME_IN_SPECIAL if hasattr(torch.special, name)},
    "and_": torch.bitwise_and,
    "or_": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "lshift": torch.bitwise_left_shift,
    "rshift": torch.bitwise_right_shift,
    "truediv": torch.true_divide,
    "div_rn": torch.true_divide,
    "int_truediv": lambda a, b: (a.double() / b.double()).to(torch.get_default_dtype()),
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "mod": torch.fmod,
    "mul_rn": torch.mul,
    "dot": torch.mul,  # one product of a dot reduction, which sums them
    "fma": lambda a, b, c: a * b + c,
    "identity": lambda x: x,
    "polygamma": _polygamma,
    "where": _where,
}

_NARROW = (torch.bfloat16, torch.float16)


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which generated code computes with values of `dtype`.

    >>> computed_in(torch.bfloat16)
    torch.float32
    """
    return torch.float32 if dtype in _NARROW else dtype


def reduced(kind: str, rows: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The results of one reduction along the last axis; several for Welford, online softmax and arg-with-value.

    >>> reduced("sum", [torch.ones(2, 3)], torch.float32)
    (tensor([3., 3.]),)
    """
    first = rows[0]
    if kind.startswith(("argmax", "argmin")):
        value, index = _extreme(rows, largest=kind.startswith("argmax"))
        return {"with_value": (value, index), "value": (value,)}.get(kind[7:], (index,))
    if kind == "welford_reduce":
        return _welford_of_values(first)
    if kind == "welford_combine":
        return _welford_of_parts(*rows)
    if kind == "online_softmax_reduce":
        return _softmax_parts(first)
    simple = _SIMPLE.get(kind)
    if simple is None or len(rows) != 1:
        raise NotInterpretable(f"the loop reduces with {kind!r}, which is not known here")
    try:
        return (simple(first).to(computed_in(dtype)),)
    except Exception as error:
        raise NotInterpretable(f"the reduction {kind!r} cannot be evaluated: {error}") from error


def _xor_sum(rows: Tensor) -> Tensor:
    while (count := rows.shape[-1]) > 1:
        half = count // 2
        folded = rows[..., :half] ^ rows[..., half : 2 * half]
        rows = torch.cat([folded, rows[..., 2 * half :]], dim=-1)
    return rows[..., 0]


_SIMPLE: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda rows: rows.sum(-1),
    "dot": lambda rows: rows.sum(-1),
    "prod": lambda rows: rows.prod(-1),
    "max": lambda rows: rows.amax(-1),
    "min": lambda rows: rows.amin(-1),
    "any": lambda rows: rows.bool().any(-1),
    "xor_sum": _xor_sum,
}


def _extreme(rows: Sequence[Tensor], largest: bool) -> tuple[Tensor, Tensor]:
    """The extreme value of each row and the first place that holds it; NaN counts as the extreme."""
    values = rows[0]
    places = (
        rows[1] if len(rows) > 1 else torch.arange(values.shape[-1], device=values.device).expand_as(values)
    )
    best = values.amax(-1) if largest else values.amin(-1)
    hit = values == best.unsqueeze(-1)
    if values.is_floating_point():
        hit = hit | (values.isnan() & best.isnan().unsqueeze(-1))
    return best, torch.where(hit, places, torch.iinfo(places.dtype).max).amin(-1)


def _welford_of_values(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    mean = rows.mean(-1)
    spread = (rows - mean.unsqueeze(-1)).square().sum(-1)
    return mean, spread, torch.full_like(mean, rows.shape[-1])


def _welford_of_parts(means: Tensor, spreads: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    weight = weights.sum(-1)
    # An empty part weighs nothing, whatever its mean says.
    mean = torch.where(weights == 0, 0, means * weights).sum(-1) / weight
    away = means - mean.unsqueeze(-1)
    away = torch.where(means.isinf() & (means == mean.unsqueeze(-1)), 0, away)
    spread = spreads.sum(-1) + torch.where(weights == 0, 0, away.square() * weights).sum(-1)
    return mean, spread, weight


def _softmax_parts(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The largest value and the sum of exponentials relative to it; a row of -inf sums to nothing, not to NaN."""
    largest = rows.amax(-1)
    base = torch.where(largest == -torch.inf, 0, largest)
    return largest, torch.exp(rows - base.unsqueeze(-1)).sum(-1)


def scanned(
    values: Sequence[Tensor], combine: Callable[[Any, Any], tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    """The running combination along the last axis, by doubling: log2(n) calls of `combine` instead of n.

    >>> scanned([torch.tensor([1, 2, 3])], lambda a, b: (a[0] + b[0],))
    (tensor([1, 3, 6]),)
    """
    current = tuple(values)
    reach, count = 1, current[0].shape[-1]
    while reach < count:
        left = tuple(each[..., :-reach] for each in current)
        right = tuple(each[..., reach:] for each in current)
        joined = combine(left, right)
        current = tuple(
            torch.cat([old[..., :reach], new.to(old.dtype)], dim=-1) for old, new in zip(current, joined)
        )
        reach *= 2
    return current
