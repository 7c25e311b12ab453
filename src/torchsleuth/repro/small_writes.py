"""Which inputs of a graph it writes to: a script that compares with eager must give each run its own.

An operator of ATen says so in its schema, anything else by its name: `x.add_(y)`, `x[0] = y`. A write to a view is
one to what the view is of, which is its first argument. In doubt an input counts: a copy more does no harm.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch

from torchsleuth.torch_internals.tensor_facts import written_arguments

_WRITING = {operator.setitem, operator.iadd, operator.isub, operator.imul, operator.itruediv}


def written_inputs(graph: torch.fx.GraphModule) -> list[str]:
    """The names of the placeholders that a run of the graph may change, in their order.

    >>> written_inputs(gm)
    ['running_mean']
    """
    return list(writers(graph))


def writers(graph: torch.fx.GraphModule) -> dict[str, list[str]]:
    """The placeholders that a run may change, in their order, each with the calls that write to it.

    >>> writers(gm)
    {'running_mean': ['copy_']}
    """
    found: dict[Any, list[str]] = {}
    for node in graph.graph.nodes:
        for value in _written(node):
            found.setdefault(_origin(value), []).append(node.name)
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    return {node.name: found[node] for node in placeholders if node in found}


def _written(node: torch.fx.Node) -> Iterator[Any]:
    if node.op not in ("call_function", "call_method"):
        return
    if hasattr(node.target, "_schema"):
        yield from (node.args[place] for place in written_arguments(node.target) if place < len(node.args))
        return
    name = str(getattr(node.target, "__name__", node.target))
    if node.target in _WRITING or (name.endswith("_") and not name.endswith("__")):
        yield from node.args[:1]


def _origin(value: Any) -> Any:
    """The node whose memory a chain of views ends at."""
    while isinstance(value, torch.fx.Node) and value.op != "placeholder" and value.args:
        value = value.args[0]
    return value
