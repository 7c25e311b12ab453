"""Plainer surroundings of the same calls: settings and switches as torch starts with them, no training, tensors that
are dense in memory, of the usual dtype, on the CPU, without gradients.

And plainer values: any from a seed, else zeros, ones, or small whole numbers; what is left are values that matter.

A graph handed to Inductor's inner compiler is tried as one handed to the whole of it: the same calls under
`torch.compile` are what a person would write. Where they fail there, too, the rest of the search goes on at that level,
so that what it ends with can be written so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch

from torchsleuth.core.cases.record import AmbientState
from torchsleuth.search.minify.contract import Edit, Input, State
from torchsleuth.search.minify.reducers.edits import edited, with_gradient, with_literals, with_tensors
from torchsleuth.search.minify.reducers.sizes import strides_of
from torchsleuth.search.minify.states import by_itself, checked
from torchsleuth.torch_core.tensors import TensorSpec, describe_tensor

# A graph that trains is more to understand than one that does not, so plain is without gradients.
_PLAIN = AmbientState(grad=False)


def default_settings(state: State) -> Iterator[Edit]:
    """One edit per setting that differs from torch's default."""
    for module, values in state.settings.config.items():
        for key in values:
            yield Edit(f"{module}.{key} to its default", _without_config, (module, key))
    for key in state.settings.options:
        yield Edit(f"option {key} to its default", _without_option, (key,))
    if state.settings.parted:
        yield Edit("compiled for the inputs of the call", partial(State.setting, parted=False))
    for each in fields(AmbientState) if state.settings.state is not None else ():
        plain = getattr(_PLAIN, each.name)
        if getattr(state.settings.state, each.name) != plain:
            yield Edit(f"{each.name} to {plain}", _with_ambient, (each.name, plain))


def _without_config(state: State, module: str, key: str) -> State:
    config = {
        m: {k: v for k, v in of.items() if (m, k) != (module, key)} for m, of in state.settings.config.items()
    }
    return state.setting(config={m: values for m, values in config.items() if values})


def _without_option(state: State, key: str) -> State:
    return state.setting(options={k: v for k, v in state.settings.options.items() if k != key})


def _with_ambient(state: State, key: str, plain: Any) -> State | None:
    ambient = state.settings.state
    return None if ambient is None else state.setting(state=replace(ambient, **{key: plain}))


def for_inference(state: State) -> Iterator[Edit]:
    """One edit: compile the graph as an inference graph with plain inputs."""
    kwargs = state.settings.compile_kwargs
    if not kwargs.get("is_inference") or any(v for k, v in kwargs.items() if k != "is_inference"):
        yield Edit("as inference", _as_inference)


def _as_inference(state: State) -> State:
    return state.setting(compile_kwargs={"is_inference": True}).having(static_names=())


def compile_the_whole_way(state: State) -> Iterator[Edit]:
    """One edit for a graph after AOTAutograd: compile it as Dynamo would hand it over."""
    if state.settings.level == "aot":
        yield Edit("compile the whole way", _from_dynamo)


def _from_dynamo(state: State) -> State:
    plain = state.setting(level="dynamo", compile_kwargs={}, visible_outputs=None)
    return plain.having(static_names=None)


def contiguous(state: State) -> Iterator[Edit]:
    """One edit per input that does not lie densely in memory."""
    for given, spec in state.tensors:
        if spec.stride != _dense(spec.shape) or spec.storage_offset:
            yield Edit(f"{given.name} contiguous", _laid_out, (given.name,))


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    return torch.empty(shape, device="meta").stride()


def _laid_out(state: State, name: str) -> State | None:
    def change(given: Input, spec: TensorSpec) -> Input:
        value = None if given.value is None else given.value.detach().contiguous().clone()
        if value is not None:
            value.requires_grad_(spec.requires_grad)
        sizes = spec.shape_expr
        strides = None if sizes is None else strides_of(sizes, range(len(sizes))[::-1], ())
        new = replace(
            spec, stride=_dense(spec.shape), storage_offset=0, stride_expr=strides, offset_expr=None
        )
        return replace(given, spec=replace(new, alias_of=None, same_as=None, storage_nbytes=0), value=value)

    return checked(with_tensors(state, change, name))


def plain_dtypes(state: State) -> Iterator[Edit]:
    """Edits that make other floats float32, and other integers int64, in inputs and literals alike."""
    seen = {spec.dtype for _, spec in state.tensors}
    for old, new in (
        ("float16", "float32"),
        ("bfloat16", "float32"),
        ("float64", "float32"),
        ("int32", "int64"),
        ("uint8", "int64"),
    ):
        if old in seen:
            yield Edit(f"{old} to {new}", with_dtype, (old, new))


def with_dtype(state: State, old: str, new: str) -> State | None:
    """The state with every tensor and literal of one dtype in another; None where that does not fit."""
    before, after = getattr(torch, old), getattr(torch, new)

    def change(given: Input, spec: TensorSpec) -> Input:
        if spec.dtype != old:
            return given
        spec = replace(spec, dtype=new, storage_nbytes=0, alias_of=None, same_as=None)
        if given.value is None:
            return replace(given, spec=spec)
        value = by_itself(given.value.detach().to(after))
        spec = replace(spec, stride=tuple(value.stride()), storage_offset=0, offset_expr=None)
        return replace(given, spec=spec, value=value)

    literals = with_literals(lambda value: after if value is before else value)
    return checked(edited(with_tensors(state, change), literals))


def without_gradients(state: State) -> Iterator[Edit]:
    """One edit per input that asks for a gradient, and one per input that was computed before."""
    for given, spec in state.tensors:
        if spec.requires_grad or spec.is_parameter:
            yield Edit(f"{given.name} without gradient", with_tensors, (_detached, given.name))
        if not spec.is_leaf:
            yield Edit(f"{given.name} as a leaf", with_tensors, (_as_leaf, given.name))


def _detached(given: Input, spec: TensorSpec) -> Input:
    return with_gradient(given, spec, False, is_parameter=False, is_leaf=True)


def _as_leaf(given: Input, spec: TensorSpec) -> Input:
    return with_gradient(given, spec, spec.requires_grad, is_leaf=True)


def on_the_cpu(state: State) -> Iterator[Edit]:
    """One edit that moves everything to the CPU."""
    if any(spec.device != "cpu" for _, spec in state.tensors):
        yield Edit("on the CPU", _on_cpu)


def _on_cpu(state: State) -> State | None:
    def moved(given: Input, spec: TensorSpec) -> Input:
        if given.value is None:
            return replace(given, spec=replace(spec, device="cpu"))
        value = by_itself(given.value).cpu()
        return replace(given, spec=describe_tensor(value), value=value)

    cpu = torch.device("cpu")
    literals = with_literals(lambda value: cpu if isinstance(value, torch.device) else value)
    return checked(edited(with_tensors(state, moved), literals))


def plainer_values(state: State) -> Iterator[Edit]:
    """Per input whose values are kept: none in particular, zeros, ones, small whole numbers."""
    if state.any_values:
        return
    for given, _ in state.tensors:
        if given.value is not None:
            yield Edit(f"{given.name} of any value", with_tensors, (_free, given.name))
    for given, _ in state.tensors:
        for word, fill in _FILLS.items():
            yield Edit(f"{given.name} of {word}", with_tensors, (partial(_filled, fill), given.name))


def _free(given: Input, spec: TensorSpec) -> Input:
    return replace(given, value=None)


_FILLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "zeros": torch.zeros_like,
    "ones": torch.ones_like,
    "small whole numbers": lambda value: (torch.arange(value.numel()) % 7 - 3).reshape(value.shape),
    "rounded numbers": lambda value: value.round() if value.is_floating_point() else value,
}


def _filled(fill: Callable[[torch.Tensor], torch.Tensor], given: Input, spec: TensorSpec) -> Input:
    if 0 in spec.stride or spec.alias_of is not None:
        return given
    with torch.no_grad():
        new = torch.empty_strided(spec.shape, spec.stride, dtype=getattr(torch, spec.dtype))
        new.copy_(fill(torch.zeros_like(new) if given.value is None else given.value.detach()))
    spec = replace(spec, storage_offset=0, offset_expr=None)
    return replace(given, spec=spec, value=new.requires_grad_(spec.requires_grad))
