"""A call gives way to one of its operands, or to an earlier call of the same operator.

Views, clones, casts and steps between two that matter go by the first; a failure that needs several results of one
operator, as of a concatenation of products, is often content with one of them several times.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch

from torchsleuth.search.minify.reducers.edits import calls, edited, node_of
from torchsleuth.search.minify.search.contract import Edit, State
from torchsleuth.search.minify.states import checked


def bypass(state: State) -> Iterator[Edit]:
    """One edit per call and operand: whoever reads the call reads the operand instead, or the call's first twin."""
    first: dict[object, torch.fx.Node] = {}
    for node in calls(state):
        first.setdefault(node.target, node)
    for node in reversed(calls(state)):
        if any(user.op != "output" for user in node.users):
            # Of several results only those of a twin: in a graph of operators nothing else is taken apart by getitem.
            apart = state.settings.level == "aot" and any(u.target is operator.getitem for u in node.users)
            for source in dict.fromkeys([*([] if apart else node.all_input_nodes), first[node.target]]):
                if source.op != "get_attr" and source is not node:
                    yield Edit(
                        f"{source.name} in place of {node.name}",
                        _bypassed,
                        (node.name, source.name),
                    )


def _bypassed(state: State, name: str, operand: str) -> State | None:
    if node_of(state.graph.graph, name) is None or node_of(state.graph.graph, operand) is None:
        return None

    def change(graph: torch.fx.Graph) -> None:
        node, source = node_of(graph, name), node_of(graph, operand)
        if node is not None and source is not None:
            node.replace_all_uses_with(source)

    candidate = edited(state, change)
    # A graph that only hands inputs through holds nothing that could be compiled wrongly.
    return checked(candidate) if calls(candidate) else None
