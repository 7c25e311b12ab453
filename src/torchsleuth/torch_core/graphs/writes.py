"""Which inputs of a graph it writes to: a script that compares with eager must give each run its own.

A write to a view is one to what the view is of, which is its first argument. In doubt an input counts: a copy more
does no harm.
"""

from __future__ import annotations

from typing import Any

import torch

from torchsleuth.torch_internals.schemas import written_arguments


def written_inputs(graph: torch.fx.GraphModule) -> list[str]:
    """The names of the placeholders that a run of the graph may change, in their order.

    >>> written_inputs(torch.fx.symbolic_trace(lambda x, y: x.add_(y)))
    ['x']
    """
    return list(writers(graph))


def writers(graph: torch.fx.GraphModule) -> dict[str, list[str]]:
    """The placeholders that a run may change, in their order, each with the calls that write to it.

    >>> writers(torch.fx.symbolic_trace(lambda x, y: x[0].add_(y)))
    {'x': ['add_']}
    """
    found: dict[Any, list[str]] = {}
    for node in graph.graph.nodes:
        for value in written_arguments(node):
            found.setdefault(_origin(value), []).append(node.name)
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    return {node.name: found[node] for node in placeholders if node in found}


def _origin(value: Any) -> Any:
    """The node whose memory a chain of views ends at."""
    while isinstance(value, torch.fx.Node) and value.op != "placeholder" and value.args:
        value = value.args[0]
    return value
