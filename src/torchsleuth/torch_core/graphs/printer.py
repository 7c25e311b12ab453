"""A graph as Python that a person reads and `read_graph` reads back to an equal graph; and a name for its structure.

One class per GraphModule, one statement per node, in order. Nested graphs come first as classes of their own.
Above the statements of one user source line stands that line; behind each statement stands what it yields.

The name of the structure is equal for two compilations of one program: it keeps what is called, on what, in what
order, and forgets names, metadata and numbers, because sizes differ between two compilations.
"""

import hashlib
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import torch

from torchsleuth.script_runtime.reader import GRAPH_SIGN_OF
from torchsleuth.torch_core.graphs.attributes import attribute_lines, held_value, self_path
from torchsleuth.torch_core.graphs.provenance import source_line
from torchsleuth.torch_core.graphs.source_line import SourceLine
from torchsleuth.torch_core.graphs.spelling import (
    RESERVED,
    Unprintable,
    Vocabulary,
    expression,
    keywords,
    subscript,
    unused_name,
)
from torchsleuth.torch_internals.operators import is_operator

_LONGEST_CODE = 100  # a comment line stays on one screen line


@dataclass(frozen=True)
class PrintedGraph:
    """A graph as text, with all that the text refers to."""

    source: str
    imports: tuple[str, ...]
    constants: Mapping[str, torch.Tensor]
    custom_ops: tuple[str, ...]
    references: Mapping[str, object]
    nodes: Mapping[str, SourceLine]
    calls: int
    ops: tuple[str, ...]

    @property
    def text(self) -> str:
        """The source under its import lines, as a file holds it."""
        standard = "import math\nimport operator\nfrom math import inf, nan\n\nimport torch\n"
        return standard + "".join(f"{line}\n" for line in self.imports) + "\n\n" + self.source


def print_graph(gm: torch.fx.GraphModule, name: str = "Repro") -> PrintedGraph:
    """Write a graph as Python source; raises `Unprintable` where that is not possible.

    >>> print(print_graph(gm).source)
    class Repro(torch.nn.Module):
        def forward(self, x):
            # model.py:84 in forward: x = torch.relu(x)
            relu = torch.relu(x)  # f32[2]
            return (relu,)
    <BLANKLINE>
    """
    graphs = [part for part in gm.modules() if isinstance(part, torch.fx.GraphModule)]
    taken = {node.name for part in graphs for node in part.graph.nodes} | {name}
    page = _Page(Vocabulary(taken))
    _print_class(gm, name, "", page)
    return PrintedGraph(
        source="\n\n".join(page.classes),
        imports=tuple(page.words.imports),
        constants=MappingProxyType(page.constants),
        custom_ops=tuple(page.words.custom_ops),
        references=MappingProxyType(page.words.references),
        nodes=MappingProxyType(page.nodes),
        calls=page.calls,
        ops=tuple(page.ops),
    )


@dataclass
class _Page:
    """What has been written so far."""

    words: Vocabulary
    classes: list[str] = field(default_factory=list)
    class_names: dict[int, str] = field(default_factory=dict)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    nodes: dict[str, SourceLine] = field(default_factory=dict)
    ops: dict[str, None] = field(default_factory=dict)
    calls: int = 0


def _print_class(gm: torch.fx.GraphModule, name: str, path: str, page: _Page) -> None:
    page.class_names[id(gm)] = name
    held = attribute_lines(
        gm, name, page.words, lambda target, child: _print_child(target, child, path, page)
    )
    page.constants.update(held.constants)
    forward = _forward_lines(gm, path, page)
    lines = [f"class {name}(torch.nn.Module):"]
    if held.lines:
        lines += ["    def __init__(self):", "        super().__init__()"]
        lines += [f"        {line}" for line in held.lines] + [""]
    page.classes.append("\n".join(lines + [f"    {line}" for line in forward]) + "\n")


def _print_child(target: str, child: torch.fx.GraphModule, path: str, page: _Page) -> str:
    """The class of a nested graph, written before its parent and once, however often it is used."""
    if id(child) not in page.class_names:
        words = target.replace(".", "_").split("_")
        name = page.words.fresh("".join(word[:1].upper() + word[1:] for word in words) or "Nested")
        _print_class(child, name, f"{path}{target}.", page)
    return page.class_names[id(child)]


def _forward_lines(gm: torch.fx.GraphModule, path: str, page: _Page) -> list[str]:
    variables = _variables(gm.graph)
    parameters, body, last = ["self"], [], None
    for node in gm.graph.nodes:
        try:
            if node.op == "placeholder":
                parameters.append(_parameter(node, variables, page.words))
                continue
            if node.op == "output":
                body.append(f"    return {expression(node.args[0], variables, page.words)}")
                continue
            text = _statement(node, gm, variables, page)
        except Unprintable as refused:
            raise Unprintable(_about(node, str(refused))) from None
        line = source_line(node)
        if line is not None:
            page.nodes[path + node.name] = line
            if line.place != last:
                body.append(f"    # {line.place} in {line.function}: {line.code[:_LONGEST_CODE]}")
                last = line.place
        shape = brief(node)
        body.append(
            f"    {variables[node]} = {text}  # {shape}" if shape else f"    {variables[node]} = {text}"
        )
    return [f"def forward({', '.join(parameters)}):", *(body or ["    pass"])]


def _about(node: torch.fx.Node, reason: str) -> str:
    if reason[0].isupper():
        return reason
    return f"The node {node.name} ({node.op} {node.target}) cannot be written: {reason}."


def _parameter(node: torch.fx.Node, variables: Mapping[torch.fx.Node, str], words: Vocabulary) -> str:
    if str(node.target).startswith("*"):
        raise Unprintable("it takes a variable number of arguments")
    if node.args:
        return f"{variables[node]}={expression(node.args[0], variables, words)}"
    return variables[node]


def _variables(graph: torch.fx.Graph) -> dict[torch.fx.Node, str]:
    """The nodes' own names, where these can be Python variables that hide nothing."""
    fine = {node.name for node in graph.nodes if node.name.isidentifier() and node.name not in RESERVED}
    names: dict[torch.fx.Node, str] = {}
    for node in graph.nodes:
        names[node] = node.name if node.name in fine else unused_name(node.name, fine)
        fine.add(names[node])
    return names


def _statement(node: torch.fx.Node, gm: torch.fx.GraphModule, variables: Mapping, page: _Page) -> str:
    if node.op == "get_attr":
        return self_path(str(node.target))
    page.calls += 1
    write: Callable[[object], str] = lambda value: expression(value, variables, page.words)  # noqa: E731
    if node.op == "call_method":
        page.ops[f"torch.Tensor.{node.target}"] = None
        if not node.args or not isinstance(node.args[0], torch.fx.Node):
            raise Unprintable("its method is not called on the result of a node")
        return f"{write(node.args[0])}.{node.target}({_arguments(node.args[1:], node.kwargs, write)})"
    if node.op == "call_module":
        called = type(gm.get_submodule(str(node.target)))
        page.ops[f"{called.__module__.partition('.modules')[0]}.{called.__qualname__}"] = None
        return f"{self_path(str(node.target))}({_arguments(node.args, node.kwargs, write)})"
    return _function_call(node, variables, page, write)


def _function_call(
    node: torch.fx.Node, variables: Mapping, page: _Page, write: Callable[[object], str]
) -> str:
    function = page.words.spell(node.target)
    if function is None:
        raise Unprintable(f"its function {node.target!r} has no name by which it can be found again")
    page.ops[function.removeprefix("torch.ops.") if is_operator(node.target) else function] = None
    if not node.kwargs and node.args and isinstance(node.args[0], torch.fx.Node):
        if len(node.args) == 1 and node.target in (operator.neg, operator.invert):
            return GRAPH_SIGN_OF[node.target] + write(node.args[0])
        if len(node.args) == 2 and node.target is operator.getitem:
            return f"{write(node.args[0])}[{subscript(node.args[1], write)}]"
    infix = GRAPH_SIGN_OF.get(node.target) if len(node.args) == 2 and not node.kwargs else None
    if infix is not None and any(isinstance(arg, torch.fx.Node) for arg in node.args):
        left, right = (f"({text})" if text[0] == "-" else text for text in map(write, node.args))
        return f"{left} {infix} {right}"
    given = [
        *map(write, node.args),
        *(f"{k}={text}" for k, text in keywords(node, variables, page.words).items()),
    ]
    return f"{function}({', '.join(given)})"


def _arguments(args: tuple, kwargs: Mapping[str, object], write: Callable[[object], str]) -> str:
    return ", ".join([*map(write, args), *(f"{name}={write(value)}" for name, value in kwargs.items())])


_SHORT = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "b8",
    torch.complex64: "c64",
    torch.complex128: "c128",
}
# More than a comment at the end of a line can hold.
_MOST_PARTS = 4


def brief(node: torch.fx.Node) -> str:
    """The short form of a node's result, or `""` where the graph does not say.

    >>> brief(node)
    'f32[2]'
    """
    return _describe(node.meta.get("val", node.meta.get("example_value", ...)))


def _describe(value: object) -> str:
    if isinstance(value, torch.Tensor):
        dtype = _SHORT.get(value.dtype) or str(value.dtype).removeprefix("torch.")
        device = value.device.type
        sizes = ", ".join(map(str, value.shape))
        return f"{dtype}[{sizes}]" if device == "cpu" else f"{dtype}[{sizes}] {value.device}"
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return f"Sym({value})"
    if isinstance(value, list | tuple):
        parts = [_describe(part) for part in value[:_MOST_PARTS]] + ["..."] * (len(value) > _MOST_PARTS)
        return f"({', '.join(parts)})"
    if value is None or isinstance(value, bool | int | float):
        return str(value)
    return ""


def structural_hash(gm: torch.fx.GraphModule) -> str:
    """A hex digest of what the graph calls and how the calls connect, without names, numbers or shapes.

    >>> structural_hash(gm) == structural_hash(read_graph(print_graph(gm).source))
    True
    """
    digest = hashlib.sha256()
    _feed(gm, digest, Vocabulary(set()), [])
    return digest.hexdigest()


def in_order(gm: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """Inputs first: Inductor puts effect tokens before them, where printed source cannot."""
    return sorted(gm.graph.nodes, key=lambda node: node.op != "placeholder")


def _feed(gm: torch.fx.GraphModule, digest: "hashlib._Hash", words: Vocabulary, seen: list[int]) -> None:
    if id(gm) in seen:
        digest.update(f"graph {seen.index(id(gm))};".encode())
        return
    seen.append(id(gm))
    position: dict[torch.fx.Node, int] = {}
    for number, node in enumerate(in_order(gm)):
        position[node] = number
        digest.update(f"{node.op} ".encode())
        if node.op in ("get_attr", "call_module"):
            value = held_value(gm, str(node.target))
            if isinstance(value, torch.fx.GraphModule):
                _feed(value, digest, words, seen)
            else:
                digest.update(_kind(value).encode())
        elif node.op != "placeholder":
            name = node.target if isinstance(node.target, str) else words.spell(node.target)
            digest.update(str(name or type(node.target)).encode())
        digest.update((_shape_of((node.args, dict(node.kwargs)), position) + ";").encode())


def _kind(value: object) -> str:
    return f"tensor {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__


def _shape_of(value: object, position: Mapping[torch.fx.Node, int]) -> str:
    if isinstance(value, torch.fx.Node):
        return f"%{position[value]}"
    if isinstance(value, list | tuple):
        return f"[{','.join(_shape_of(item, position) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{_shape_of(item, position)}' for key, item in value.items())}}}"
    if isinstance(value, slice):
        return f"slice{_shape_of((value.start, value.stop, value.step), position)}"
    if isinstance(value, str | torch.dtype | torch.layout | torch.memory_format):
        return str(value)
    return type(value).__name__
