"""Plainer arguments: what has a default is left out, other numbers and flags become as plain as they can be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from torchsleuth.search.minify.reducers.edits import calls, edited, node_of
from torchsleuth.search.minify.search.contract import Edit, State
from torchsleuth.search.minify.states import checked
from torchsleuth.torch_internals.schemas import schema_arguments


def plainer_arguments(state: State) -> Iterator[Edit]:
    """Edits that leave an argument to its default, or put a plainer literal in its place."""
    for node in calls(state):
        schema = schema_arguments(node.target)
        for key in node.kwargs:
            if schema is None or any(a.name == key and a.has_default for a in schema):
                yield Edit(f"{node.name} without {key}", _without_keyword, (node.name, key))
        last = len(node.args) - 1
        if schema is not None and 0 <= last < len(schema) and schema[last].has_default:
            yield Edit(f"{node.name} without its last argument", _without_last, (node.name,))
        for place, value in enumerate(node.args):
            for plain in _plainer(value):
                yield Edit(
                    f"argument {place} of {node.name} to {plain!r}",
                    _with,
                    (node.name, place, plain),
                )


def _plainer(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [False] if value else []
    if isinstance(value, float):
        return [v for v in (0.0, 1.0) if v != value]
    if isinstance(value, (list, tuple)) and value and all(isinstance(v, bool) for v in value):
        return (
            [] if not any(value) else [[i == k for i in range(len(value))] for k, v in enumerate(value) if v]
        )
    if (
        isinstance(value, (list, tuple))
        and len(value) > 1
        and not any(isinstance(v, torch.fx.Node) for v in value)
    ):
        same = [[plain] * len(value) for plain in (0, 1)]
        return [v for v in same if v != list(value)] if all(isinstance(v, int) for v in value) else []
    if isinstance(value, (list, tuple)) and len(value) > 1:
        return [list(value[:1])]
    return []


def _without_keyword(state: State, name: str, key: str) -> State | None:
    node = node_of(state.graph.graph, name)
    if node is None or key not in node.kwargs:
        return None
    kept = {k: v for k, v in node.kwargs.items() if k != key}
    return _changed(state, name, node.args, kept)


def _without_last(state: State, name: str) -> State | None:
    node = node_of(state.graph.graph, name)
    schema = None if node is None else schema_arguments(node.target)
    if node is None or schema is None or not node.args or not schema[len(node.args) - 1].has_default:
        return None
    return _changed(state, name, node.args[:-1], dict(node.kwargs))


def _with(state: State, name: str, place: int, value: Any) -> State | None:
    node = node_of(state.graph.graph, name)
    if node is None or place >= len(node.args) or node.args[place] == value:
        return None
    if isinstance(value, list) and any(isinstance(v, torch.fx.Node) for v in value):
        names = [getattr(v, "name", v) for v in value]
        value = [v for v in node.args[place] if getattr(v, "name", v) in names]
    return _changed(state, name, (*node.args[:place], value, *node.args[place + 1 :]), dict(node.kwargs))


def _changed(state: State, name: str, args: tuple, kwargs: dict) -> State | None:
    def change(graph: torch.fx.Graph) -> None:
        node = node_of(graph, name)
        here = {n.name: n for n in graph.nodes}
        if node is not None:
            node.args = torch.fx.map_arg(args, lambda n: here[n.name])
            node.kwargs = torch.fx.map_arg(kwargs, lambda n: here[n.name])

    return checked(edited(state, change))
