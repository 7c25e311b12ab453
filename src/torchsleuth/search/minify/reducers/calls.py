"""A call gives way to a plainer one: a failure that needs some call there, but not that one, is easier to read."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from torchsleuth.search.minify.reducers.edits import calls, edited, node_of
from torchsleuth.search.minify.search.contract import Edit, State
from torchsleuth.search.minify.states import checked, shapes_of
from torchsleuth.torch_internals.operators import is_operator


def plainer_calls(state: State) -> Iterator[Edit]:
    """One edit per call and operand of its form: the call negates that operand and reads nothing else."""
    found = calls(state)
    if len(found) < 2:  # a call by itself is the one that fails
        return
    forms = shapes_of(state).forms
    for node in reversed(found):
        for source in dict.fromkeys(node.all_input_nodes):
            if (
                source.op != "get_attr"
                and source.name in forms
                and forms[source.name] == forms.get(node.name)
            ):
                yield Edit(f"a plain call in place of {node.name}", _plain, (node.name, source.name))


def _plain(state: State, name: str, operand: str) -> State | None:
    if node_of(state.graph.graph, name) is None or node_of(state.graph.graph, operand) is None:
        return None
    operators = all(is_operator(node.target) for node in calls(state))

    def change(graph: torch.fx.Graph) -> None:
        node, source = node_of(graph, name), node_of(graph, operand)
        assert node is not None and source is not None
        with graph.inserting_before(node):
            plain = graph.call_function(torch.ops.aten.neg.default if operators else torch.neg, (source,))
        plain.meta = dict(node.meta)
        node.replace_all_uses_with(plain)

    return checked(edited(state, change))
