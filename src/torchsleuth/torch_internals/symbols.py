"""What a symbolic number knows: its expression, its hint, and the base symbols with their ranges.

Only stored facts are read; no symbol is compared or evaluated, so no guard is added to the user's trace.

Versions: 2.13 renamed `var_to_val` to `backed_var_to_val`; an unbacked hint is None or raises.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from torchsleuth.script_runtime.symbolic_inputs import symbolic_number


def expression_of(number: Any) -> str:
    """`"2*s0"`; for a plain number its own digits.

    >>> expression_of(3)
    '3'
    """
    return str(number.node.expr) if _is_symbolic(number) else str(number)


def hint_of(number: Any) -> Any:
    """The example value behind a symbolic number; None where only running the program gives one."""
    if not _is_symbolic(number):
        return number
    known = number.node.constant
    if known is not None:
        return known
    try:
        hint = number.node.hint
    except Exception:
        return None
    return None if hint is None else number.node.pytype(hint)


def base_symbols(number: Any) -> Iterator[tuple[str, int | None, int | None, int | None]]:
    """(name, hint, lower, upper) of each symbol in the expression; None for an unknown hint or no bound."""
    if not _is_symbolic(number):
        return
    env = number.node.shape_env
    values = getattr(env, "backed_var_to_val", None) or env.var_to_val
    for symbol in sorted(number.node.expr.free_symbols, key=str):
        span = env.var_to_range.get(symbol)
        hint = values.get(symbol)
        lower, upper = (None, None) if span is None else (_finite(span.lower), _finite(span.upper))
        yield str(symbol), None if hint is None else int(hint), lower, upper


def _is_symbolic(number: object) -> bool:
    return isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool)


def _finite(bound: Any) -> int | None:
    # Bounds near the edge of int64 are how "no bound" is stored for sizes; newer ones are sympy infinities.
    if not getattr(bound, "is_Integer", isinstance(bound, int)):
        return None
    value = int(bound)
    return value if abs(value) < 2**62 else None


def number_of(expression: str, hints: Mapping[str, int]) -> int | None:
    """What a size's expression comes to for these numbers; None where a symbol in it has none.

    >>> number_of("2*s0 + 1", {"s0": 3})
    7
    """
    try:
        return int(symbolic_number(expression, dict(hints), None))
    except (ValueError, ArithmeticError):
        return None
