"""Values of the symbolic expressions in Inductor's IR: indices over a whole grid, sizes, strides and conditions.

One idea: an expression is a tree of a few known node types, and each has a meaning that is the same for one
Python number and for a tensor of them. So a symbol may stand for a size (a number) or for a loop variable
(a tensor of all its values), and one walk serves both. What is not in the table is refused, never guessed.
Differs between torch versions: node types come and go, so they are known by class name.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import sympy
import torch


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


def _where(condition: Any, yes: Any, no: Any) -> Any:
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


def _negate(x: Any) -> Any:
    return ~x if isinstance(x, torch.Tensor) else not x


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
    "Where": _where,
    "And": _reduce(operator.and_),
    "Or": _reduce(operator.or_),
    "Not": _negate,
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
        result = _where(condition, value, result)
    return result


def number(expression: Any, symbols: Symbols) -> int:
    """A size, stride or offset as a plain int."""
    result = value_of(expression, symbols)
    if isinstance(result, torch.Tensor):
        raise NotInterpretable(f"the size {expression} depends on a loop variable")
    return int(result)
