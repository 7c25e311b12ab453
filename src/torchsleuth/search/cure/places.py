"""Where in the program the fault lies, as something a person can switch off: a function, a module, a class of modules.

The record of a graph says for each node which line of the program it comes from and in which module that ran. The nodes
at fault are those that triage named, else those that call what the smallest repro calls, else those the error names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from torchsleuth.core.cases.model import Case
from torchsleuth.search.minify.case_state import SearchStart, seeds
from torchsleuth.torch_core.graphs.source_line import SourceLine

# What Dynamo calls the rest of a function after a graph break.
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+")
# A smallest repro of more calls than this says little about any one of them.
FEW_OPS = 3

Lines = Mapping[str, SourceLine]


@dataclass(frozen=True)
class Function:
    """A function of the program: `define` is the line of its `def`, None where the file cannot be read here."""

    file: str
    name: str
    line: int
    define: int | None

    @property
    def place(self) -> str:
        """`model.py:12`, or `model.py` where the line is not known."""
        return Path(self.file).name + (f":{self.define}" if self.define is not None else "")


@dataclass(frozen=True)
class Suspects:
    """The operators at fault, the nodes that were seen to fail, and all nodes that call the same operators."""

    ops: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    alike: tuple[str, ...] = ()


def suspects_of(case: Case, start: SearchStart) -> Suspects:
    """Who may be at fault, best knowledge first; nobody where nothing says so.

    Those that triage named, for one: `suspects_of(folder.case, start).ops`.
    """
    calls = {n.name: str(n.target) for n in start.state.graph.graph.nodes if n.op.startswith("call_")}
    lines = start.record.lines
    triage, minified = case.triage, case.minified
    ops = list(triage.ops) if triage else []
    nodes = [name for name in (triage.nodes if triage else ()) if name in calls]
    if not ops and not nodes and minified and 0 < len(minified.ops) <= FEW_OPS:
        ops = list(minified.ops)
    if not ops and not nodes:
        nodes = seeds(start.state.graph, start.traceback, start.expected.message, lines)[:1]
    ops = ops or list(dict.fromkeys(calls[name] for name in nodes))
    alike = [name for name, target in calls.items() if target in ops]
    if not nodes and not alike and triage and triage.user_line:
        nodes = [name for name in calls if name in lines and lines[name].place == triage.user_line]
    nodes = nodes or alike[:1]
    return Suspects(tuple(ops), tuple(nodes), tuple(dict.fromkeys([*nodes, *alike])))


def function_of(line: SourceLine) -> Function | None:
    """The function that a line of the record lies in; None for code outside of any function."""
    match = _RESUMED.fullmatch(line.function)
    name = match[1] if match else line.function
    return Function(line.file, name, line.line, _definition(line, name)) if name.isidentifier() else None


def _definition(line: SourceLine, name: str) -> int | None:
    """The line of the `def` around a line, where the file is here and still holds that line."""
    try:
        text = Path(line.file).read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, ValueError, SyntaxError):
        return None
    wanted = line.line
    source = text.splitlines()
    if wanted > len(source) or line.code.strip() not in source[wanted - 1]:
        return None
    around = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.name == name
        and node.lineno <= wanted <= (node.end_lineno or 0)
    ]
    return max(around, default=None)


def nodes_of_functions(lines: Lines, functions: Iterable[Function]) -> frozenset[str]:
    """The nodes that come from these functions."""
    wanted = set(functions)
    known: dict[tuple[str, str, int], Function | None] = {}

    def function(line: SourceLine) -> tuple[str, str, int | None] | None:
        key = (line.file, line.function, line.line)
        if key not in known:
            known[key] = function_of(line)
        found = known[key]
        return None if found is None else (found.file, found.name, found.define)

    keys = {(f.file, f.name, f.define) for f in wanted}
    return frozenset(name for name, line in lines.items() if function(line) in keys)


def nodes_of_modules(lines: Lines, paths: Iterable[str]) -> frozenset[str]:
    """The nodes that ran in the modules at these paths or below them."""
    tops = tuple(paths)

    def inside(path: str) -> bool:
        return any(path == top or path.startswith(f"{top}.") for top in tops)

    return frozenset(name for name, line in lines.items() if inside(line.module))


def module_expression(path: str) -> str:
    """The module at a path as Python: `model.encoder.layers[3].mlp` for `encoder.layers.3.mlp`.

    >>> module_expression("layers.3.mlp"), module_expression("2")
    ('model.layers[3].mlp', 'model[2]')
    """
    return "model" + "".join(f"[{part}]" if part.isdecimal() else f".{part}" for part in path.split("."))


def is_library(file: str) -> bool:
    """Whether a file is an installed package's, which nobody should edit."""
    return re.search(r"[/\\](site|dist)-packages[/\\]", file) is not None


def with_eager_call(code: str, called: str) -> str | None:
    """A line of source with the one call of that name kept from the compiler; None where it makes no such call.

    >>> with_eager_call("    markers.mul_(2.0)", "mul_")
    'torch.compiler.disable(markers.mul_)(2.0)'
    """
    text, before = code.strip(), "def f(): "  # a line with `return` is one of a function only
    try:
        tree = ast.parse(before + text)
    except SyntaxError:
        return None
    found = [
        node.func
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == called
    ]
    if len(found) != 1 or not text.isascii():
        return None
    begin, end = found[0].col_offset - len(before), (found[0].end_col_offset or 0) - len(before)
    return f"{text[:begin]}torch.compiler.disable({text[begin:end]}){text[end:]}"


def class_of(lines: Lines, nodes: Iterable[str]) -> str | None:
    """The one class of torch.nn whose modules hold all these nodes, e.g. `nn.ReLU`; None where there is none."""
    calls = {lines[name].call if name in lines else "" for name in nodes}
    if len(calls) != 1:
        return None
    name = calls.pop()
    found = getattr(torch.nn, name.removeprefix("nn."), None) if name.startswith("nn.") else None
    return name if isinstance(found, type) and issubclass(found, torch.nn.Module) else None
