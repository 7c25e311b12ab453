"""A graph as the statements that build it, node by node: what tracing a function would not give back.

Tracing changes some graphs: calls that nobody reads are dropped, operators on special tensors become others. Here each
statement makes one node, nested graphs and the tensors that a graph holds included.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch

from torchsleuth.torch_core.graphs.attributes import held_value
from torchsleuth.torch_core.graphs.constants import tensor_expression
from torchsleuth.torch_core.graphs.literals import Unprintable, expression
from torchsleuth.torch_core.graphs.names import RESERVED, Vocabulary, unused_name
from torchsleuth.torch_core.repro.small_body import Body


def node_lines(graph: torch.fx.GraphModule, names: Mapping[str, str], *, references: bool = False) -> Body:
    """The statements that make `f`, a GraphModule equal to `graph`; `names` are those of its inputs.

    Functions of the user's are called by their names where the script has them (`references`).

    >>> node_lines(gm, {"x": "x"}).lines[2]
    'relu = graph.call_function(torch.relu, (x,))'
    """
    words = Vocabulary(set(names.values()) | {"f", "graph", "backend"})
    lines = _module_lines(graph, "f", dict(names), words, {"f", "graph", "backend", *RESERVED})
    if words.references and not references:
        raise Unprintable("the graph calls functions of the user's program")
    return Body(lines, list(words.imports))


def _module_lines(
    module: torch.fx.GraphModule, name: str, names: Mapping[str, str], words: Vocabulary, taken: set[str]
) -> list[str]:
    """The statements for one graph; those of the graphs inside it come first, as modules of their own."""
    inner: list[str] = []
    held: dict[str, str] = {}
    for target in dict.fromkeys(str(n.target) for n in module.graph.nodes if n.op == "get_attr"):
        value = held_value(module, target)
        if "." in target:
            raise Unprintable("the graph holds values in modules of its own")
        if isinstance(value, torch.fx.GraphModule):
            held[target] = unused_name(target, taken)
            taken.add(held[target])
            inner += _module_lines(value, held[target], {}, words, taken)
        elif isinstance(value, torch.Tensor):
            held[target], kept = tensor_expression(value, target, shared=False)
            if kept is not None:
                raise Unprintable("the graph holds tensors that do not fit into its text")
        else:
            raise Unprintable(f"the graph holds a {type(value).__name__}")
    variables: dict[torch.fx.Node, str] = {}
    used = set(taken)
    lines = ["graph = torch.fx.Graph()"]
    for node in module.graph.nodes:
        if node.op == "output":
            lines.append(f"graph.output({expression(node.args[0], variables, words)})")
            continue
        text = _statement(node, names, variables, words)
        variables[node] = unused_name(names.get(node.name, node.name), used)
        used.add(variables[node])
        lines.append(f"{variables[node]} = {text}" if node.users else text)
    root = ", ".join(f"{key!r}: {value}" for key, value in held.items())
    return [*inner, *lines, f"{name} = torch.fx.GraphModule({{{root}}}, graph)"]


def _statement(
    node: torch.fx.Node,
    names: Mapping[str, str],
    variables: Mapping[torch.fx.Node, str],
    words: Vocabulary,
) -> str:
    if node.op == "placeholder":
        return f"graph.placeholder({names.get(node.name, node.name)!r})"
    if node.op == "get_attr":
        return f"graph.get_attr({node.target!r})"
    if node.op == "call_module":
        raise Unprintable("the graph calls a module")
    target: Any = repr(node.target) if node.op == "call_method" else words.spell(node.target)
    if target is None:
        raise Unprintable(f"its function {node.target!r} has no name by which it can be found again")
    if node.target is operator.getitem:
        target = "operator.getitem"
    given = [expression(tuple(node.args), variables, words)]
    given += [expression(dict(node.kwargs), variables, words)] if node.kwargs else []
    return f"graph.{node.op}({', '.join([target, *given])})"
