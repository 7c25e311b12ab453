"""The calls of a graph as lines of a script: statements of a function, or those that build the graph node by node.

A function is written in torch's public names where it has them. But tracing it changes some graphs: calls that nobody
reads are dropped, operators on special tensors become others. Where each statement makes one node, nested graphs and
the tensors that a graph holds are there, too.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from torchsleuth.script_runtime.reader import read_graph
from torchsleuth.torch_core.graphs.attributes import held_value, tensor_expression
from torchsleuth.torch_core.graphs.printer import print_graph
from torchsleuth.torch_core.graphs.spelling import (
    RESERVED,
    Unprintable,
    Vocabulary,
    expression,
    keywords,
    unused_name,
)
from torchsleuth.torch_internals.operators import aten_name, triton_launch

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}


@dataclass(frozen=True)
class Body:
    """Statements, the last of which returns, and the imports they need."""

    lines: list[str]
    imports: list[str]


def body_lines(
    graph: torch.fx.GraphModule, names: Mapping[str, str], *, public: bool, boxed: bool = False
) -> Body:
    """The statements of a graph; `names` are those of its inputs. `public` prefers torch.relu to the operator.

    `boxed` returns a single output in a tuple, as a graph that is compiled by itself must.

    >>> body_lines(gm, {"x": "x"}, public=True).lines
    ['return torch.relu(x)']
    """
    words = Vocabulary(set(names.values()) | {"f", "backend"})
    _require_names(graph)
    variables: dict[torch.fx.Node, str] = {}
    taken = set(names.values()) | RESERVED | {"f"}
    lines: list[str] = []
    nodes = list(graph.graph.nodes)
    for node in nodes:
        if node.op == "placeholder":
            variables[node] = names[node.name]
        elif node.op == "output":
            lines.append(f"return {_returned(node.args[0], variables, words, boxed)}")
        elif node.op == "get_attr":
            raise Unprintable("the graph holds constants")
        elif "kernel_idx" in node.kwargs and not boxed:
            lines += _launch(node, variables, words, taken)
        elif node not in variables:
            text = _public_call(node, variables, words) if public else None
            variables[node] = unused_name(node.name, taken)
            taken.add(variables[node])
            if text is None:
                text = _exact(node, variables, words)
            whole = lines[-1].partition(" = ")[2] if _is_part_of_last(node) else ""
            if whole and isinstance(ast.parse(whole, mode="eval").body, ast.Call):
                lines.pop()
                text = f"{whole}[{expression(node.args[1], variables, words)}]"
            lines.append(f"{variables[node]} = {text}" if node.users else text)
    return Body(_folded(lines), list(words.imports))


def _require_names(graph: torch.fx.GraphModule) -> None:
    """Reading the printed graph back proves that every name in it is found again."""
    printed = print_graph(graph)
    read_graph(printed.source, namespace=printed.references)


def _returned(value: object, variables: Mapping[torch.fx.Node, str], words: Vocabulary, boxed: bool) -> str:
    if isinstance(value, (list, tuple)) and len(value) == 1 and not boxed:
        value = value[0]
    text = expression(tuple(value) if isinstance(value, list) else value, variables, words)
    return text[1:-1] if isinstance(value, (list, tuple)) and len(value) > 1 else text


def _is_part_of_last(node: torch.fx.Node) -> bool:
    """Whether a node takes one part of what the call right before it yields, and nothing else reads that."""
    before = node.prev
    call = before.op.startswith("call_") and list(before.users) == [node]
    return call and node.target is operator.getitem and node.args[0] is before


def _folded(lines: list[str]) -> list[str]:
    """`a = g(x); return a` as `return g(x)`."""
    if len(lines) >= 2 and lines[-1] == f"return {lines[-2].partition(' = ')[0]}":
        return [*lines[:-2], f"return {lines[-2].partition(' = ')[2]}"]
    return lines


def _launch(
    node: torch.fx.Node, variables: dict[torch.fx.Node, str], words: Vocabulary, taken: set[str]
) -> list[str]:
    """A call of the user's Triton kernel as people write it; what it must leave as it is, is copied before.

    What the node yields is read by name, and so are the copies: `variables` gets a name for each reader.
    """
    launch = triton_launch(node.target, node.kwargs)
    grids = {expression(grid, variables, words) for grid in node.kwargs["grid"]}
    if launch is None or len(grids) != 1 or node.kwargs.get("tma_descriptor_metadata"):
        raise Unprintable("each configuration of its kernel has a grid of its own, or it takes descriptors")
    given: Mapping[str, object] = node.kwargs["kwargs"]
    written = {name: expression(value, variables, words) for name, value in given.items()}
    lines = []
    for name in node.kwargs.get("tensors_to_clone", ()):
        copy = unused_name(str(name), taken)
        taken.add(copy)
        lines.append(f"{copy} = {written[name]}.clone()")
        written[name] = copy
    for reader in node.users:
        if reader.target is not operator.getitem or reader.args[0] is not node:
            raise Unprintable("what a Triton kernel yields is read as a whole")
        variables[reader] = written[reader.args[1]]
    written |= {name: expression(value, variables, words) for name, value in launch.constants.items()}
    arguments = ", ".join(f"{name}={text}" for name, text in written.items())
    return [*lines, f"{words.refer(launch.kernel, launch.name)}[{grids.pop()}]({arguments})"]


def _public_call(
    node: torch.fx.Node, variables: Mapping[torch.fx.Node, str], words: Vocabulary
) -> str | None:
    name = aten_name(node.target)
    if name is None or name.startswith("_"):
        return None
    args = [expression(a, variables, words) for a in node.args]
    kwargs = [f"{key}={expression(value, variables, words)}" for key, value in node.kwargs.items()]
    if name in _INFIX and len(args) == 2 and not kwargs:
        return f"{args[0]} {_INFIX[name]} {args[1]}"
    listed = ", ".join([*args, *kwargs])
    if callable(getattr(torch, name, None)) and not name.endswith("_"):
        return f"torch.{name}({listed})"
    if hasattr(torch.Tensor, name) and node.args and isinstance(node.args[0], torch.fx.Node):
        return f"{args[0]}.{name}({', '.join([*args[1:], *kwargs])})"
    if callable(getattr(torch.nn.functional, name, None)) and not name.endswith("_"):
        return f"torch.nn.functional.{name}({listed})"
    return None


def _exact(node: torch.fx.Node, variables: dict[torch.fx.Node, str], words: Vocabulary) -> str:
    """The call as the printer writes it, with this script's variables."""
    alone = torch.fx.Graph()
    made: dict[torch.fx.Node, torch.fx.Node] = {}
    for source in node.all_input_nodes:
        made[source] = alone.create_node("placeholder", variables[source], name=variables[source])
    copy = alone.node_copy(node, lambda n: made[n])
    alone.output((copy,))
    one = print_graph(torch.fx.GraphModule(torch.nn.Module(), alone))
    words.imports.update(dict.fromkeys(one.imports))
    if one.references:
        raise Unprintable("the graph calls functions of the user's program")
    statement = next(line for line in one.source.splitlines() if " = " in line and "def " not in line)
    return statement.partition(" = ")[2].partition("  # ")[0]


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
    target: str | None = repr(node.target) if node.op == "call_method" else words.spell(node.target)
    if target is None:
        raise Unprintable(f"its function {node.target!r} has no name by which it can be found again")
    if node.target is operator.getitem:
        target = "operator.getitem"
    given = [expression(tuple(node.args), variables, words)]
    named = ", ".join(f"{name!r}: {text}" for name, text in keywords(node, variables, words).items())
    given += [f"{{{named}}}"] if named else []
    if "kernel_idx" in node.kwargs:
        words.imports["from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table"] = None
    return f"graph.{node.op}({', '.join([target, *given])})"
