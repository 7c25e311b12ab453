"""Write nested graphs that always run into the graph that calls them.

The idea: rounding is modelled node by node, so a checkpointed layer must be seen as its nodes, not as one call.
Branches and loops stay calls: which of their nodes run depends on values.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from torchsleuth.torch_core.compare.reference.float64 import fetch

ALWAYS_RUN = frozenset(["invoke_subgraph", "tag_activation_checkpoint", "wrap", "wrap_activation_checkpoint"])
"""Higher-order ops that call their graph once with their operands and return what it returns."""


def inlined(graph: GraphModule) -> GraphModule:
    """The graph with every nested graph that always runs written out; the graph itself when there is none.

    Example: `inlined(captured)(*inputs)` gives what `captured(*inputs)` gives.
    """
    if not any(_called_graph(graph, node) for node in graph.graph.nodes):
        return graph
    flat = Graph()
    outputs = _copy(graph, graph, "", flat, None)
    flat.output(outputs)
    attributes = {
        str(n.target): fetch(graph, str(n.target)) for n in flat.nodes if n.op in ("get_attr", "call_module")
    }
    return GraphModule(attributes, flat)


def _called_graph(owner: GraphModule, node: Node) -> GraphModule | None:
    if node.op != "call_function" or getattr(node.target, "__name__", "") not in ALWAYS_RUN or not node.args:
        return None
    first = node.args[0]
    called = fetch(owner, str(first.target)) if isinstance(first, Node) and first.op == "get_attr" else None
    if not isinstance(called, GraphModule):
        return None
    wanted = sum(n.op == "placeholder" for n in called.graph.nodes)
    return called if wanted == len(_operands(node)) else None


def _operands(node: Node) -> list[Any]:
    # invoke_subgraph names its graph in a string between the graph and its operands.
    return [a for a in node.args[1:] if not isinstance(a, str)]


def _copy(root: GraphModule, owner: GraphModule, prefix: str, flat: Graph, operands: list[Any] | None) -> Any:
    """Copy a graph's nodes into `flat`; returns what its output stands for there."""
    env: dict[Node, Any] = {}
    given = iter(operands or [])

    def look_up(node: Node) -> Any:
        return env[node]

    for node in owner.graph.nodes:
        called = _called_graph(owner, node)
        if node.op == "placeholder" and operands is not None:
            env[node] = next(given)
        elif node.op == "output":
            return torch.fx.map_arg(node.args[0], look_up)
        elif called is not None:
            inner = [torch.fx.map_arg(a, look_up) for a in _operands(node)]
            path = f"{prefix}{node.args[0].target}."
            env[node] = _copy(root, called, path, flat, inner)
        elif node.target is operator.getitem and isinstance(env[node.args[0]], (list, tuple)):
            env[node] = env[node.args[0]][node.args[1]]
        elif not (node.op == "get_attr" and all(_called_graph(owner, user) for user in node.users)):
            env[node] = flat.node_copy(node, look_up)
            if node.op in ("get_attr", "call_module"):
                env[node].target = prefix + str(node.target)
    raise ValueError("a graph without an output cannot be judged")
