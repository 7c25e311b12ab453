"""Small changes of a state's graph, on a copy: the state itself stays as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchsleuth.search.minify.contract import Input, State
from torchsleuth.search.minify.states import with_bound_symbols, with_visible_outputs
from torchsleuth.torch_core.tensors import TensorSpec


def edited(state: State, change: Callable[..., object], *names: str) -> State | None:
    """The state after `change(graph, *nodes)` was made to a copy of its graph, with the nodes of these names.

    What nothing reads any more is gone. None where one of the nodes is gone already, or `change` says False.

    >>> edited(state, lambda graph: graph.output_node().update_arg(0, ())).inputs
    ()
    """
    graph = copy.deepcopy(state.graph)
    nodes = [node_of(graph.graph, name) for name in names]
    if None in nodes or change(graph.graph, *nodes) is False:
        return None
    return tidied(state, graph)


def tidied(state: State, graph: torch.fx.GraphModule) -> State:
    """The state with this graph in place of its own, less the inputs and attributes nobody reads."""
    for node in reversed(list(graph.graph.nodes)):
        plain = node.op == "get_attr" or (node.op.startswith("call_") and not node.is_impure())
        if plain and not node.users:
            graph.graph.erase_node(node)
    used = {n.name for n in graph.graph.nodes if n.op == "placeholder" and n.users}
    kept = [i for i in state.inputs if i.name in used]
    for node in [n for n in graph.graph.nodes if n.op == "placeholder" and not n.users]:
        graph.graph.erase_node(node)
    graph.graph.lint()
    # A graph module copies what its new graph needs from the old one, and leaves the rest behind.
    lean = torch.fx.GraphModule(graph, graph.graph)
    settings = with_visible_outputs(state.settings, lean)
    return with_bound_symbols(
        state.having(graph=lean, inputs=renumbered(state.inputs, kept), settings=settings)
    )


def renumbered(old: Sequence[Input], kept: Sequence[Input]) -> tuple[Input, ...]:
    """The kept inputs, with references to other inputs' places put right, or dropped with what they named."""
    places = {id(given): place for place, given in enumerate(kept)}
    groups = [i.spec.alias_of for i in kept if isinstance(i.spec, TensorSpec)]
    made = []
    for given in kept:
        spec = given.spec
        if isinstance(spec, TensorSpec):
            same = None if spec.same_as is None else places.get(id(old[spec.same_as]))
            group = spec.alias_of if groups.count(spec.alias_of) > 1 else None
            spec = replace(spec, same_as=same, alias_of=group)
        made.append(replace(given, spec=spec))
    return tuple(made)


def with_gradient(given: Input, spec: TensorSpec, wanted: bool, **changes: Any) -> Input:
    """The input, on memory that autograd has not seen, which asks for a gradient or does not."""
    value = None if given.value is None else given.value.detach().requires_grad_(wanted)
    return replace(given, spec=replace(spec, requires_grad=wanted, **changes), value=value)


def node_of(graph: torch.fx.Graph, name: str) -> torch.fx.Node | None:
    """The node of this name, or None.

    >>> node_of(gm.graph, "relu").op
    'call_function'
    """
    return next((node for node in graph.nodes if node.name == name), None)


def calls(state: State) -> list[torch.fx.Node]:
    """The calls of the outer graph, in order."""
    return [n for n in state.graph.graph.nodes if n.op.startswith("call_")]


def with_tensors(
    state: State, change: Callable[[Input, TensorSpec], Input], name: str | None = None
) -> State:
    """The state with its inputs that are tensors changed, or only the one of that name.

    >>> with_tensors(state, lambda given, spec: replace(given, value=None)).inputs[0].value is None
    True
    """
    changed = {given.name: change(given, spec) for given, spec in state.tensors if name in (None, given.name)}
    return state.having(inputs=tuple(changed.get(i.name, i) for i in state.inputs))


def with_literals(other: Callable[[object], object]) -> Callable[[torch.fx.Graph], None]:
    """A change of a graph: `other(value)` in the place of each argument, nested ones included."""

    def change(graph: torch.fx.Graph) -> None:
        for node in graph.nodes:
            node.args = torch.fx.node.map_aggregate(node.args, other)
            node.kwargs = torch.fx.node.map_aggregate(node.kwargs, other)

    return change
