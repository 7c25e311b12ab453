"""Sizes that are symbols: their numbers and their expressions say the same, whatever a reducer changes.

A symbol stands for one number wherever it occurs, so a size that is one changes with all the others; a size that is
a plain number in a symbolic shape is changed in both writings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torchsleuth.search.minify.search.contract import Input
from torchsleuth.torch_core.tensors.specs import ScalarSpec, SymbolSpec, TensorSpec
from torchsleuth.torch_internals.tensors import number_of


def least_size(text: str | None, symbols: Mapping[str, SymbolSpec], least: int) -> int:
    """The smallest number that a size may have, given what is known of its symbol.

    >>> least_size("s0", {"s0": SymbolSpec(hint=5, lower=2)}, 1)
    2
    """
    about = symbols.get(text or "")
    return least if about is None or about.lower is None else max(least, about.lower)


def in_step(given: Input, hints: Mapping[str, int]) -> tuple[int, ...] | int | None:
    """What an input's expressions say its shape, or its number, is; None where that cannot be worked out."""
    if isinstance(given.spec, ScalarSpec):
        return None if given.spec.expr is None else number_of(given.spec.expr, hints)
    sizes = [number_of(text, hints) for text in given.spec.shape_expr or ()]
    return None if any(size is None for size in sizes) else tuple(size for size in sizes if size is not None)


def with_number(given: Input, dim: int, number: int) -> Input:
    """The input with one plain number of its symbolic shape changed."""
    spec = given.spec
    if not isinstance(spec, TensorSpec) or spec.shape_expr is None or not spec.shape_expr[dim].isdigit():
        return given
    texts = (*spec.shape_expr[:dim], str(number), *spec.shape_expr[dim + 1 :])
    return replace(given, spec=replace(spec, shape_expr=texts))


def strides_of(sizes: Sequence[str], order: Sequence[int], expanded: Sequence[int]) -> tuple[str, ...]:
    """The strides of dense memory for symbolic sizes, innermost dimension first in `order`; `expanded` ones are 0.

    >>> strides_of(["s0", "3", "4"], [2, 1, 0], [])
    ('12', '4', '1')
    """
    found = ["0"] * len(sizes)
    number, symbolic = 1, ""
    for dim in order:
        if dim in expanded:
            continue
        found[dim] = f"{number}{symbolic}"
        if sizes[dim].isdigit():
            number *= int(sizes[dim])
        else:
            symbolic += f"*({sizes[dim]})"
    return tuple(found)


def fixed(text: str, hints: Mapping[str, int]) -> str:
    """An expression with some of its symbols replaced by numbers: `fixed("192*s5", {"s5": 2}) == "384"`."""
    put = re.sub(r"[A-Za-z_]\w*", lambda found: str(hints.get(found[0], found[0])), text)
    number = number_of(put, {})
    return put if number is None else str(number)
