"""Plainer tensors: dense in memory, of the usual dtype, on the CPU, without gradients, of fixed size.

And plainer values: any from a seed, else zeros, ones, or small whole numbers; what is left are values that matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from torchsleuth.search.minify.contract import Edit, Input, State
from torchsleuth.search.minify.reducers.edits import edited, with_gradient, with_input, with_literals
from torchsleuth.search.minify.reducers.sizes import fixed, strides_of
from torchsleuth.search.minify.states import by_itself, checked
from torchsleuth.torch_core.tensors import ScalarSpec, TensorSpec, describe_tensor


def contiguous(state: State) -> Iterator[Edit]:
    """One edit per input that does not lie densely in memory."""
    for given in state.inputs:
        spec = given.spec
        if isinstance(spec, TensorSpec) and (spec.stride != _dense(spec.shape) or spec.storage_offset):
            yield Edit(f"{given.name} contiguous", _laid_out, (given.name,))


def plain_dtypes(state: State) -> Iterator[Edit]:
    """Edits that make other floats float32, and other integers int64, in inputs and literals alike."""
    seen = {i.spec.dtype for i in state.inputs if isinstance(i.spec, TensorSpec)}
    for old, new in (
        ("float16", "float32"),
        ("bfloat16", "float32"),
        ("float64", "float32"),
        ("int32", "int64"),
        ("uint8", "int64"),
    ):
        if old in seen:
            yield Edit(f"{old} to {new}", with_dtype, (old, new))


def without_gradients(state: State) -> Iterator[Edit]:
    """One edit per input that asks for a gradient, and one per input that was computed before."""
    for given in state.inputs:
        if isinstance(given.spec, TensorSpec) and (given.spec.requires_grad or given.spec.is_parameter):
            yield Edit(f"{given.name} without gradient", with_input, (given.name, _detached))
        if isinstance(given.spec, TensorSpec) and not given.spec.is_leaf:
            yield Edit(f"{given.name} as a leaf", with_input, (given.name, _as_leaf))


def static_sizes(state: State) -> Iterator[Edit]:
    """Edits that fix symbolic sizes: all of them, then each."""
    if state.symbols:
        yield Edit("static sizes", _static, (tuple(state.symbols),))
    for name in state.symbols if len(state.symbols) > 1 else ():
        yield Edit(f"static {name}", _static, ((name,),))


def on_the_cpu(state: State) -> Iterator[Edit]:
    """One edit that moves everything to the CPU."""
    if any(isinstance(i.spec, TensorSpec) and i.spec.device != "cpu" for i in state.inputs):
        yield Edit("on the CPU", _on_cpu)


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    return torch.empty(shape, device="meta").stride()


def _laid_out(state: State, name: str) -> State | None:
    def change(given: Input) -> Input:
        spec = given.spec
        if not isinstance(spec, TensorSpec):
            return given
        value = None if given.value is None else given.value.detach().contiguous().clone()
        new = replace(spec, stride=_dense(spec.shape), storage_offset=0, stride_expr=None, offset_expr=None)
        if spec.shape_expr is not None:
            new = replace(new, stride_expr=strides_of(spec.shape_expr, range(len(spec.shape))[::-1], ()))
        if value is not None:
            value.requires_grad_(spec.requires_grad)
        return replace(given, spec=replace(new, alias_of=None, same_as=None, storage_nbytes=0), value=value)

    return checked(with_input(state, name, change))


def with_dtype(state: State, old: str, new: str) -> State | None:
    """The state with every tensor and literal of one dtype in another; None where that does not fit."""
    before, after = getattr(torch, old), getattr(torch, new)
    inputs = []
    for given in state.inputs:
        if isinstance(given.spec, TensorSpec) and given.spec.dtype == old:
            value = None if given.value is None else by_itself(given.value.detach().to(after))
            spec = replace(given.spec, dtype=new, storage_nbytes=0, alias_of=None, same_as=None)
            if value is not None:
                stride = tuple(value.stride())
                spec = replace(spec, stride=stride, storage_offset=0, offset_expr=None)
            given = replace(given, spec=spec, value=value)
        inputs.append(given)

    change = with_literals(lambda value: after if value is before else value)
    return checked(edited(state.having(inputs=tuple(inputs)), change))


def _detached(given: Input) -> Input:
    return with_gradient(given, False, is_parameter=False, is_leaf=True)


def _as_leaf(given: Input) -> Input:
    return with_gradient(given, isinstance(given.spec, TensorSpec) and given.spec.requires_grad, is_leaf=True)


def _static(state: State, names: tuple[str, ...]) -> State | None:
    known = {name: about.hint for name, about in state.symbols.items() if name in names}
    hints = {name: hint for name, hint in known.items() if hint is not None}
    if not hints:
        return None
    left = [name for name in state.symbols if name not in names]

    def plain(texts: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if texts is None else tuple(fixed(text, hints) for text in texts)

    def symbolic(texts: Any) -> bool:
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


def _instead_of(node: torch.fx.Node, literal: Any, read: torch.fx.Node) -> Any:
    return literal if read is node else read


def _on_cpu(state: State) -> State | None:
    def moved(given: Input) -> Input:
        if not isinstance(given.spec, TensorSpec):
            return given
        if given.value is None:
            return replace(given, spec=replace(given.spec, device="cpu"))
        value = by_itself(given.value).cpu()
        return replace(given, spec=describe_tensor(value), value=value)

    cpu = torch.device("cpu")
    change = with_literals(lambda value: cpu if isinstance(value, torch.device) else value)
    return checked(edited(state.having(inputs=tuple(map(moved, state.inputs))), change))


def plainer_values(state: State) -> Iterator[Edit]:
    """Per input whose values are kept: none in particular, zeros, ones, small whole numbers."""
    if state.any_values:
        return
    tensors = [given for given in state.inputs if given.is_tensor]
    for given in tensors:
        if given.value is not None:
            yield Edit(f"{given.name} of any value", with_input, (given.name, _free))
    for given in tensors:
        for word, fill in _FILLS.items():
            yield Edit(f"{given.name} of {word}", _filled, (given.name, fill))


def _free(given: Input) -> Input:
    return replace(given, value=None)


def _whole(value: torch.Tensor) -> torch.Tensor:
    return (torch.arange(value.numel(), dtype=torch.int64) % 7 - 3).reshape(value.shape)


_FILLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "zeros": torch.zeros_like,
    "ones": torch.ones_like,
    "small whole numbers": _whole,
    "rounded numbers": lambda value: value.round() if value.is_floating_point() else value,
}


def _filled(state: State, name: str, fill: Callable[[torch.Tensor], torch.Tensor]) -> State | None:
    def change(given: Input) -> Input:
        spec = given.spec
        if not isinstance(spec, TensorSpec) or 0 in spec.stride or spec.alias_of is not None:
            return given
        with torch.no_grad():
            new = torch.empty_strided(spec.shape, spec.stride, dtype=getattr(torch, spec.dtype))
            new.copy_(fill(torch.zeros_like(new) if given.value is None else given.value.detach()))
        spec = replace(spec, storage_offset=0, offset_expr=None)
        return replace(given, spec=spec, value=new.requires_grad_(spec.requires_grad))

    return with_input(state, name, change)
