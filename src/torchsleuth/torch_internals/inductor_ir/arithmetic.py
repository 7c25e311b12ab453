"""The arithmetic of Inductor's IR as Python and torch: symbolic expressions, pointwise steps, reductions, scans.

An expression is a tree of a few known node types, and each has a meaning that is the same for one Python number and for
a tensor of them. So a symbol may stand for a size (a number) or for a loop variable (a tensor of all its values), and
one walk serves both. Of the `ops.*` most are torch's own names with torch's own meaning; only the others are written
out. A reduction gets rows: the reduced axes are one last axis, and what it returns has lost it.

What is not in the tables is refused, never guessed; node types come and go between versions, so they are known by name.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import Tensor


class NotInterpretable(RuntimeError):
    """The lowered graph holds something whose meaning is not known here; the reason is one sentence."""


Symbols = Mapping[Any, Any]


def _pick(smaller: bool) -> Callable[..., Any]:
    def two(a: Any, b: Any) -> Any:
        if not (isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor)):
            return min(a, b) if smaller else max(a, b)
        tensor = a if isinstance(a, torch.Tensor) else b
        left, right = (torch.as_tensor(each, device=tensor.device) for each in (a, b))
        return torch.minimum(left, right) if smaller else torch.maximum(left, right)

    return lambda *parts: functools.reduce(two, parts)


def _choose(condition: Any, yes: Any, no: Any) -> Any:
    if isinstance(condition, torch.Tensor):
        return torch.where(condition, yes, no)
    return yes if condition else no


def _to_int(rounding: str) -> Callable[[Any], Any]:
    def convert(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return getattr(torch, rounding)(x).to(torch.int64)
        return round(x) if rounding == "round" else int(getattr(math, rounding)(x))

    return convert


def _to_float(x: Any) -> Any:
    return x.to(torch.float64) if isinstance(x, torch.Tensor) else float(x)


def _true_divide(a: Any, b: Any) -> Any:
    return _to_float(a) / _to_float(b)


def _reduce(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda *parts: functools.reduce(function, parts)


# Sizes and indices are never negative where torch uses Mod and ModularIndexing, so one remainder serves them all.
_MEANING: dict[str, Callable[..., Any]] = {
    "Add": _reduce(operator.add),
    "Mul": _reduce(operator.mul),
    "Pow": operator.pow,
    "PowByNatural": operator.pow,
    "FloatPow": operator.pow,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "CeilDiv": lambda a, b: -(-a // b),
    "ModularIndexing": lambda base, divisor, modulus: base // divisor % modulus,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "IntTrueDiv": _true_divide,
    "FloatTrueDiv": _true_divide,
    "ToFloat": _to_float,
    "FloorToInt": _to_int("floor"),
    "CeilToInt": _to_int("ceil"),
    "TruncToInt": _to_int("trunc"),
    "RoundToInt": _to_int("round"),
    "floor": _to_int("floor"),
    "ceiling": _to_int("ceil"),
    "LShift": operator.lshift,
    "RShift": operator.rshift,
    "BitwiseFn_bitwise_and": operator.and_,
    "BitwiseFn_bitwise_or": operator.or_,
    "BitwiseFn_bitwise_xor": operator.xor,
    "Min": _pick(smaller=True),
    "Max": _pick(smaller=False),
    "Abs": abs,
    "Identity": lambda x: x,
    "Where": _choose,
    "And": _reduce(operator.and_),
    "Or": _reduce(operator.or_),
    "Not": lambda x: ~x if isinstance(x, torch.Tensor) else not x,
    "Equality": operator.eq,
    "Unequality": operator.ne,
    "StrictLessThan": operator.lt,
    "LessThan": operator.le,
    "StrictGreaterThan": operator.gt,
    "GreaterThan": operator.ge,
}


def value_of(expression: Any, symbols: Symbols) -> Any:
    """The value of an expression: a Python number, or a tensor where a symbol in it stands for one.

    >>> s0 = sympy.Symbol("s0"); value_of(s0 // 2 + 1, {s0: 10})
    6
    """
    if isinstance(expression, (bool, int, float, torch.Tensor)):
        return expression
    if isinstance(expression, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value_of(expression.node.expr, symbols)
    if isinstance(expression, sympy.Symbol):
        if expression not in symbols:
            raise NotInterpretable(f"the size {expression} is not known from the inputs")
        return symbols[expression]
    if expression in (sympy.true, sympy.false):
        return bool(expression)
    if isinstance(expression, sympy.Integer):
        return int(expression)
    if isinstance(expression, sympy.Number) or expression in (sympy.oo, -sympy.oo):
        return float(expression)
    if isinstance(expression, sympy.Piecewise):
        return _piecewise(expression, symbols)
    return _applied(expression, symbols)


def _applied(expression: Any, symbols: Symbols) -> Any:
    meaning = _MEANING.get(type(expression).__name__)
    if meaning is None:
        raise NotInterpretable(f"the index expression {expression} uses {type(expression).__name__}")
    parts = [value_of(part, symbols) for part in expression.args]
    try:
        return meaning(*parts)
    except Exception as error:
        raise NotInterpretable(f"the index expression {expression} cannot be evaluated: {error}") from error


def _piecewise(expression: Any, symbols: Symbols) -> Any:
    cases = [(value_of(value, symbols), value_of(condition, symbols)) for value, condition in expression.args]
    result, last = cases[-1]
    if last is not True:
        raise NotInterpretable(f"the index expression {expression} has no value in some cases")
    for value, condition in reversed(cases[:-1]):
        result = _choose(condition, value, result)
    return result


def number(expression: Any, symbols: Symbols) -> int:
    """A size, stride or offset as a plain int."""
    result = value_of(expression, symbols)
    if isinstance(result, torch.Tensor):
        raise NotInterpretable(f"the size {expression} depends on a loop variable")
    return int(result)


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
    "where": lambda condition, yes, no: torch.where(condition.bool(), yes, no),
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
