"""Plainer values: any from a seed, else zeros, ones, or small whole numbers; what is left are values that matter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from torchsleuth.search.minify.reducers.edits import with_input
from torchsleuth.search.minify.search.contract import Edit, Input, State
from torchsleuth.torch_core.tensors.specs import TensorSpec


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
