"""Smaller sizes, changed alike wherever the graph uses the same size; then fewer dimensions.

Which sizes belong together is not derived but tried: all that are equal first, then each by itself. Literals in the
graph that equal the size follow it. What does not fit together any more is never tried. A symbol stands for one number
wherever it occurs, so a size that is one changes with all the others; a size that is a plain number in a symbolic shape
is changed in both writings.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch

from torchsleuth.search.minify.contract import Edit, Input, NumberEdit, State
from torchsleuth.search.minify.reducers.edits import edited, with_tensors
from torchsleuth.search.minify.states import by_itself, checked
from torchsleuth.torch_core.compare.reference.opkinds import draws
from torchsleuth.torch_core.tensors import ScalarSpec, TensorSpec
from torchsleuth.torch_internals.tensors import number_of

T = TypeVar("T")
# A dimension of one element is a special case to most compilers; but if it fails with one, one is the least.
LEAST = 1
# So many numbers that are drawn twice are equal once in four billion times, as zeros and ones.
FEW_DRAWN = 32


def smaller_sizes(state: State) -> Iterator[NumberEdit]:
    """A number per size that occurs, largest first, and one per dimension where several have the same size."""
    places: dict[int, list[tuple[str, int]]] = {}
    least: dict[tuple[str, int], int] = {}
    for given, spec in state.tensors:
        for dim, size in enumerate(spec.shape):
            about = state.symbols.get(spec.shape_expr[dim]) if spec.shape_expr else None
            least[given.name, dim] = max(LEAST, about.lower or LEAST) if about is not None else LEAST
            if size > least[given.name, dim]:
                places.setdefault(size, []).append((given.name, dim))
    for size in sorted(places, reverse=True):
        group = tuple(places[size])
        lowest = max(least[place] for place in group)
        yield NumberEdit(f"size {size}", lowest, size, _resized, (group, size, True))
    for size in sorted(places, reverse=True):
        for place in places[size] if len(places[size]) > 1 else ():
            what = f"dim {place[1]} of {place[0]}"
            yield NumberEdit(what, least[place], size, _resized, ((place,), size, False))


def fewer_dimensions(state: State) -> Iterator[Edit]:
    """Edits that take a dimension of one element away, first from all inputs, then from each."""
    for dim in range(max((len(spec.shape) for _, spec in state.tensors), default=0)):
        yield Edit(f"no dim {dim}", _squeezed, (dim, None))
    for given, spec in state.tensors:
        for dim, size in enumerate(spec.shape):
            if size == 1:
                yield Edit(f"no dim {dim} of {given.name}", _squeezed, (dim, given.name))


def _resized(
    state: State, new: int, group: tuple[tuple[str, int], ...], old: int, literals: bool
) -> State | None:
    """The state with a number in the place of a size; where that does not fit, with `literals` in its calls as well.

    Of few random numbers those of two draws may be equal by chance: then some tensor has to stay large.
    """
    given = {i.name: i for i in state.inputs}
    shapes = {each.name: list(spec.shape) for each, spec in state.tensors}
    moved = {name for name, about in state.symbols.items() if literals and about.hint == old}
    for name, dim in group:
        if name not in shapes or dim >= len(shapes[name]) or shapes[name][dim] != old:
            return None
        shapes[name][dim] = new
        spec = given[name].spec
        if isinstance(spec, TensorSpec) and spec.shape_expr is not None:
            moved |= {spec.shape_expr[dim]} & state.symbols.keys()
            given[name] = with_number(given[name], dim, new)
    symbols = {k: replace(v, hint=new) if k in moved else v for k, v in state.symbols.items()}
    if any(s.lower is not None and s.hint is not None and s.hint < s.lower for s in symbols.values()):
        return None
    hints = {name: about.hint for name, about in symbols.items() if about.hint is not None}
    inputs = [
        _in_new_size(i, shapes.get(i.name), hints, (old, new) if literals else None) for i in given.values()
    ]
    candidate = state.having(inputs=tuple(inputs), symbols=symbols)
    largest = max((math.prod(spec.shape) for _, spec in candidate.tensors), default=FEW_DRAWN)
    if largest < FEW_DRAWN and any(draws(node) for node in state.graph.graph.nodes):
        return None
    found = checked(candidate)
    if found is None and literals:
        return checked(edited(candidate, lambda graph: _follow(graph, old, new)))
    return found


def _in_new_size(
    given: Input, shape: list[int] | None, hints: Mapping[str, int], number: tuple[int, int] | None
) -> Input:
    """The input in its new shape; where it has expressions, they say which, and the other way round for numbers."""
    if isinstance(given.spec, ScalarSpec):
        expected = in_step(given, hints)
        if given.spec.kind == "symint" and isinstance(expected, int):
            return replace(given, spec=replace(given.spec, value=expected))
        follows = number is not None and given.spec.kind == "symint" and given.spec.value == number[0]
        return replace(given, spec=replace(given.spec, value=number[1])) if follows and number else given
    expected = in_step(given, hints) if given.spec.shape_expr is not None else None
    return with_shape(given, expected if isinstance(expected, tuple) else tuple(shape or given.spec.shape))


def _follow(graph: torch.fx.Graph, old: int, new: int) -> None:
    def other(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(other(v) for v in value)
        return new if type(value) is int and value == old else value

    for node in graph.nodes:
        if node.op.startswith("call_"):
            node.args = tuple(other(a) if isinstance(a, (list, tuple)) else a for a in node.args)


def with_shape(given: Input, shape: tuple[int, ...]) -> Input:
    """The input in another shape, its dimensions in the same order in memory, its value cut out of the old one."""
    spec = given.spec
    assert isinstance(spec, TensorSpec)
    if shape == spec.shape:
        return given
    order = sorted(range(len(shape)), key=lambda d: (spec.stride[d], -d) if d < len(spec.stride) else (0, 0))
    stride, step = [0] * len(shape), 1
    for dim in order:
        if spec.stride[dim] != 0 or spec.shape[dim] == 1:
            stride[dim], step = step, step * shape[dim]
    value = None if given.value is None else _cropped(given.value, shape, tuple(stride))
    new = replace(spec, shape=shape, stride=tuple(stride), storage_offset=0, storage=None, storage_nbytes=0)
    if spec.shape_expr is not None:
        sizes = tuple(str(n) if text.isdigit() else text for n, text in zip(shape, spec.shape_expr))
        expanded = [dim for dim in order if spec.stride[dim] == 0 and spec.shape[dim] != 1]
        new = replace(new, shape_expr=sizes, stride_expr=strides_of(sizes, order, expanded), offset_expr=None)
    return replace(given, spec=replace(new, alias_of=None, same_as=None), value=value)


def _cropped(value: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    """A piece of the value that holds its largest element, which is the one that data-dependent failures need."""
    plain = value.detach()
    if plain.numel():
        flat = (plain if plain.is_complex() else plain.double()).abs()
        flat = torch.nan_to_num(flat.double(), nan=torch.inf)
        at = torch.unravel_index(flat.argmax(), flat.shape) if flat.dim() else ()
        for dim, (size, place) in enumerate(zip(shape, at)):
            start = min(max(int(place) - size // 2, 0), plain.shape[dim] - size)
            plain = plain.narrow(dim, start, size)
    if 0 in stride:
        return by_itself(plain).requires_grad_(value.requires_grad)
    made = torch.empty_strided(shape, stride, dtype=plain.dtype, device=plain.device)
    return made.copy_(plain).requires_grad_(value.requires_grad)


def _squeezed(state: State, dim: int, name: str | None) -> State | None:
    """Without a dimension of one element, of one input or of all that have it."""

    def less(items: tuple[T, ...]) -> tuple[T, ...]:
        return items[:dim] + items[dim + 1 :]

    def change(given: Input, spec: TensorSpec) -> Input:
        if spec.shape[dim : dim + 1] != (1,):
            return given
        spec = replace(
            spec,
            shape=less(spec.shape),
            stride=less(spec.stride),
            shape_expr=less(spec.shape_expr) if spec.shape_expr else None,
            stride_expr=less(spec.stride_expr) if spec.stride_expr else None,
            alias_of=None,
            same_as=None,
        )
        value = None if given.value is None else by_itself(given.value.detach().squeeze(dim))
        return replace(given, spec=spec, value=value)

    made = with_tensors(state, change, name)
    changed = any(new is not old for new, old in zip(made.inputs, state.inputs))
    return checked(made) if changed else None


# -- sizes that are symbols


def static_sizes(state: State) -> Iterator[Edit]:
    """Edits that fix symbolic sizes: all of them, then each."""
    if state.symbols:
        yield Edit("static sizes", _static, (tuple(state.symbols),))
    for name in state.symbols if len(state.symbols) > 1 else ():
        yield Edit(f"static {name}", _static, ((name,),))


def _static(state: State, names: tuple[str, ...]) -> State | None:
    known = {name: about.hint for name, about in state.symbols.items() if name in names}
    hints = {name: hint for name, hint in known.items() if hint is not None}
    if not hints:
        return None
    left = [name for name in state.symbols if name not in names]

    def plain(texts: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if texts is None else tuple(fixed(text, hints) for text in texts)

    def symbolic(texts: Iterable[object] | None) -> bool:
        return any(name in left for text in texts or () for name in re.findall(r"\w+", str(text)))

    inputs = []
    for given in state.inputs:
        spec = given.spec
        if isinstance(spec, ScalarSpec) and spec.expr is not None and not symbolic([fixed(spec.expr, hints)]):
            given = replace(given, spec=ScalarSpec("int", spec.value))
        elif isinstance(spec, TensorSpec) and spec.shape_expr is not None:
            shape, stride = plain(spec.shape_expr), plain(spec.stride_expr)
            offset = None if spec.offset_expr is None else fixed(spec.offset_expr, hints)
            if not symbolic([*(shape or ()), *(stride or ()), offset]):
                shape = stride = offset = None
            given = replace(
                given, spec=replace(spec, shape_expr=shape, stride_expr=stride, offset_expr=offset)
            )
        inputs.append(given)
    literals = {
        i.name: i.spec.value for i in inputs if isinstance(i.spec, ScalarSpec) and i.spec.kind == "int"
    }
    symbols = {k: v for k, v in state.symbols.items() if k not in names}

    def change(graph: torch.fx.Graph) -> None:
        for node in list(graph.nodes):
            for user in list(node.users) if node.op == "placeholder" and node.name in literals else ():
                put = partial(_instead_of, node, literals[node.name])
                user.args, user.kwargs = torch.fx.map_arg(user.args, put), torch.fx.map_arg(user.kwargs, put)

    return checked(edited(state.having(inputs=tuple(inputs), symbols=symbols), change))


def _instead_of(node: torch.fx.Node, literal: object, read: torch.fx.Node) -> object:
    return literal if read is node else read


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
