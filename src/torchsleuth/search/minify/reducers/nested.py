"""A nested graph takes the place of the operator that calls it: a branch for its `cond`, a body for its wrapper."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch

from torchsleuth.search.minify.reducers.edits import calls, edited, node_of
from torchsleuth.search.minify.search.contract import Edit, State
from torchsleuth.search.minify.states import checked


def inline_nested(state: State) -> Iterator[Edit]:
    """One edit per nested graph: its nodes in place of the call."""
    for node in calls(state):
        for source in node.all_input_nodes:
            if _nested(state, source) is not None:
                yield Edit(
                    f"{source.target} in place of {node.name}",
                    _inlined,
                    (node.name, source.name),
                )


def _nested(state: State, source: torch.fx.Node) -> torch.fx.GraphModule | None:
    held = getattr(state.graph, str(source.target), None) if source.op == "get_attr" else None
    return held if isinstance(held, torch.fx.GraphModule) else None


def _inlined(state: State, name: str, attribute: str) -> State | None:
    node, source = node_of(state.graph.graph, name), node_of(state.graph.graph, attribute)
    body = None if node is None or source is None else _nested(state, source)
    if node is None or body is None or any(isinstance(c, torch.fx.GraphModule) for c in body.children()):
        return None
    wanted = len(body.graph.find_nodes(op="placeholder"))
    given = [n for n in _operands((node.args, node.kwargs)) if n.op != "get_attr"]
    if len(given) < wanted or any(n.op == "get_attr" for n in body.graph.nodes):
        return None
    names = [
        n.name for n in given[len(given) - wanted :]
    ]  # what steers the operator comes before its operands

    def change(graph: torch.fx.Graph) -> None:
        call = node_of(graph, name)
        assert call is not None
        inside = dict(zip(body.graph.find_nodes(op="placeholder"), (node_of(graph, n) for n in names)))
        with graph.inserting_before(call):
            results = graph.graph_copy(body.graph, inside)
        _replace(graph, call, results)

    return checked(edited(state, change))


def _operands(value: Any) -> list[torch.fx.Node]:
    found: list[torch.fx.Node] = []
    torch.fx.map_arg(value, lambda n: found.append(n) or n)  # type: ignore[func-returns-value]
    return found


def _replace(graph: torch.fx.Graph, call: torch.fx.Node, results: Any) -> None:
    if not isinstance(results, (list, tuple)):
        call.replace_all_uses_with(results)
        return
    for user in list(call.users):
        if user.target is operator.getitem and isinstance(user.args[1], int):
            if isinstance(results[user.args[1]], torch.fx.Node):
                user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
    if call.users and len(results) == 1:
        call.replace_all_uses_with(results[0])
    graph.erase_node(call)
