"""Fewer outputs: a result that something inside reads as well need not be returned."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from torchsleuth.search.minify.reducers.edits import edited
from torchsleuth.search.minify.search.contract import Edit, State


def drop_outputs(state: State) -> Iterator[Edit]:
    """One edit per output: return all but this one."""
    outputs = state.graph.graph.output_node().args[0]
    if not isinstance(outputs, (list, tuple)) or len(outputs) < 2:
        return
    for node in dict.fromkeys(o for o in outputs if isinstance(o, torch.fx.Node)):
        yield Edit(f"do not return {node.name}", _without, (node.name,))


def _without(state: State, name: str) -> State | None:
    outputs = state.graph.graph.output_node().args[0]
    kept = [o for o in outputs if getattr(o, "name", None) != name]
    if not kept or len(kept) == len(outputs):
        return None

    def change(graph: torch.fx.Graph) -> None:
        output = graph.output_node()
        output.args = (tuple(o for o in output.args[0] if getattr(o, "name", None) != name),)

    return edited(state, change)
