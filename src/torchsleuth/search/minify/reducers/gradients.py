"""Gradients inside a graph: `torch.func.grad` without its levels, and the gradient of a part of what it is taken of.

Nothing inside a level of torch.func can be cut out by itself, and a part that is fed with recorded values has lost its
way back to what the gradient is taken with respect to. So levels go first, which leaves plain autograd; then the
gradient is taken of the results of a part, with respect to what that part reads.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import replace

import torch

from torchsleuth.core.cases.record import AmbientState
from torchsleuth.search.minify.contract import Edit, State
from torchsleuth.search.minify.reducers.edits import calls, edited, node_of, with_gradient, with_tensors
from torchsleuth.torch_core.graphs.cut import Cut
from torchsleuth.torch_core.graphs.recording import RecordedTensor, Recording
from torchsleuth.torch_internals.operators import nesting, role_in_gradient


def plain_gradients(state: State) -> Iterator[Edit]:
    """Edits: no levels, where all of them are those of gradients; each gradient with respect to one tensor."""
    levels = [node for node in calls(state) if nesting(node)]
    grad = (state.settings.state or AmbientState()).grad
    if levels and grad and all(role_in_gradient(node) == "level" for node in levels):
        yield Edit("gradients without levels", _without_levels)
    for node in calls(state):
        if role_in_gradient(node) == "gradient" and len(node.args) > 1 and len(_listed(node.args[1])) > 1:
            for place in range(len(_listed(node.args[1]))):
                yield Edit(f"{node.name} by input {place}", _by_one, (node.name, place))


def _without_levels(state: State) -> State | None:
    wrapped: set[str] = set()

    def change(graph: torch.fx.Graph) -> None:
        for node in list(graph.nodes):
            role = role_in_gradient(node)
            if role in ("wrap", "unwrap"):
                if role == "wrap":
                    wrapped.add(node.args[0].name)
                node.replace_all_uses_with(node.args[0])
            if role in ("wrap", "unwrap", "level") and not node.users:
                graph.erase_node(node)

    made = edited(state, change)
    if made is None:
        return None
    return with_tensors(
        made, lambda given, spec: with_gradient(given, spec, True) if given.name in wrapped else given
    )


def _by_one(state: State, name: str, place: int) -> State | None:
    def change(graph: torch.fx.Graph, node: torch.fx.Node) -> bool:
        taken_apart = all(user.target is operator.getitem for user in node.users)
        if not taken_apart or place >= len(_listed(node.args[1])):
            return False
        node.args = (node.args[0], [_listed(node.args[1])[place]], *node.args[2:])
        for user in list(node.users):
            user.args = (node, 0)
        return True

    return edited(state, change, name)


def lone_gradient(recording: Recording) -> str | None:
    """The name of the one call in a graph without levels that takes a gradient."""
    nodes = [recording.nodes[name] for name in recording.calls]
    found = [node.name for node in nodes if role_in_gradient(node) == "gradient"]
    return found[0] if len(found) == 1 and not any(map(nesting, nodes)) else None


def gradient_of_part(piece: Cut, gradient: str, recording: Recording) -> Cut | None:
    """A part of a graph and its call for a gradient, reconnected: of what the part yields, by all that it reads."""
    graph = piece.graph.graph
    call = node_of(graph, gradient)
    assert call is not None
    ends = [node for node in graph.nodes if node.op.startswith("call_") and _is_end(node, call, recording)]
    values = dict(zip((n.name for n in graph.nodes if n.op == "placeholder"), piece.values, strict=True))
    read = _read_by(ends)
    sources = [node for node in graph.nodes if node in read and _may_train(values.get(node.name))]
    if not ends or not sources:
        return None
    with graph.inserting_before(call):
        sums = tuple(graph.call_function(torch.sum, (end,)) for end in ends)
    call.args = (sums, sources, *call.args[2:])
    first = next(user for user in call.users if user.target is operator.getitem)
    first.args = (call, 0)
    graph.output_node().args = ((first,),)
    for node in reversed([n for n in graph.nodes if n.op != "output" and not n.users]):
        graph.erase_node(node)
    placeholders = [n.name for n in graph.nodes if n.op == "placeholder"]
    names = dict(zip(values, piece.names))
    trained = {node.name for node in sources}
    kept = tuple(
        replace(value, spec=replace(value.spec, requires_grad=True))
        if isinstance(value, RecordedTensor) and name in trained
        else value
        for name in placeholders
        for value in [values[name]]
    )
    module = torch.fx.GraphModule(piece.graph, graph)
    return Cut(module, tuple(names[name] for name in placeholders), kept)


def _is_end(node: torch.fx.Node, call: torch.fx.Node, recording: Recording) -> bool:
    """Whether a node of a part is read by nothing in it but the gradient."""
    inside = [user for user in node.users if user is not call and user.op != "output"]
    apart = node is not call and call not in node.all_input_nodes
    return apart and not inside and _may_train(recording.value(node.name))


def _may_train(value: object) -> bool:
    return isinstance(value, RecordedTensor) and getattr(torch, value.spec.dtype).is_floating_point


def _read_by(ends: list[torch.fx.Node]) -> set[torch.fx.Node]:
    found: set[torch.fx.Node] = set()
    todo = list(ends)
    while todo:
        sources = [source for source in todo.pop().all_input_nodes if source not in found]
        found.update(sources)
        todo += sources
    return found


def _listed(value: object) -> list[object]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
