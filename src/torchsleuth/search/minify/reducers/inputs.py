"""Fewer inputs: two that look alike can be one and the same, and one that nothing reads can go."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import torch

from torchsleuth.search.minify.reducers.edits import edited, node_of, tidied
from torchsleuth.search.minify.search.contract import Edit, State
from torchsleuth.torch_core.tensors.specs import TensorSpec


def merge_inputs(state: State) -> Iterator[Edit]:
    """Edits that read an earlier input of the same form instead of a later one, or drop what nothing reads."""
    used = {n.name for n in state.graph.graph.nodes if n.op == "placeholder" and n.users}
    if len(used) < len(state.inputs):
        yield Edit("drop unused inputs", _used)
    forms: dict[object, str] = {}
    for given in state.inputs:
        if isinstance(given.spec, TensorSpec) and given.name in used:
            form = replace(given.spec, storage=None, storage_nbytes=0, same_as=None, alias_of=None)
            first = forms.setdefault(form, given.name)
            if first != given.name:
                yield Edit(f"{given.name} is {first}", _merged, (first, given.name))


def _used(state: State) -> State:
    return tidied(state, copy.deepcopy(state.graph))


def _merged(state: State, first: str, second: str) -> State | None:
    names = {i.name for i in state.inputs}
    if first not in names or second not in names:
        return None

    def change(graph: torch.fx.Graph) -> None:
        one, other = node_of(graph, first), node_of(graph, second)
        if one is not None and other is not None:
            other.replace_all_uses_with(one)

    return edited(state, change)
