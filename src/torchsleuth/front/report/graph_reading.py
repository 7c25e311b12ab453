"""A captured graph, or the function of a small script, as calls and what each uses: read as text, never executed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchsleuth.torch_core.graphs.source_line import SourceLine

# A graph of this many characters has tens of thousands of calls.
MOST_TEXT = 8 << 20
_MARK = re.compile(r"#\s*(?P<place>[^\s:#]+:\d+) in (?P<function>[^:]*): (?P<code>.*)$")
_SIGNS = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.MatMult: "@",
}


class NotAGraph(ValueError):
    """A text that is not a straight list of calls; says why in a few words."""


@dataclass(frozen=True)
class Call:
    """One call: what it is named, what it calls, what it uses; `text` is the call as it is written."""

    name: str
    op: str
    uses: tuple[str, ...] = ()
    text: str = ""
    shape: str = ""  # e.g. "f32[2, 8]"
    place: str = ""  # e.g. "model.py:84"
    code: str = ""
    module: str = ""


@dataclass(frozen=True)
class Graph:
    """Inputs, calls in order, and what is returned; `made` says how the inputs of a script are made."""

    inputs: tuple[str, ...]
    calls: tuple[Call, ...]
    outputs: tuple[str, ...] = ()
    made: Mapping[str, str] = field(default_factory=dict)


def read_graph(source: str, lines: Mapping[str, SourceLine] | None = None) -> Graph:
    """The graph in `graph.py`, one call for each statement; `lines` are those of the user's program, by call.

    >>> [call.op for call in read_graph("def forward(self, x):\\n    y = torch.relu(x)\\n    return (y,)").calls]
    ['torch.relu']
    """
    function = _function(_parsed(source), ("forward",))
    text = source.splitlines()
    names = [each.arg for each in function.args.args if each.arg != "self"]
    known = set(names)
    calls: list[Call] = []
    outputs: tuple[str, ...] = ()
    place = code = ""
    seen = function.lineno
    for statement in function.body:
        for line in text[seen : statement.lineno - 1]:
            if mark := _MARK.search(line):
                place, code = mark["place"], mark["code"]
        seen = statement.end_lineno or statement.lineno
        value = getattr(statement, "value", None)
        if isinstance(value, ast.Constant) and value.value is None:  # `x = None` frees x
            continue
        uses = _names(statement, known)
        if isinstance(statement, ast.Return):
            outputs = uses
            continue
        made = [] if isinstance(statement, ast.Expr) else list(_targets(statement))
        name = made[0] if made else f"line {statement.lineno}"
        known.update(made)
        last = text[seen - 1] if seen <= len(text) else ""
        body = last[: statement.end_col_offset]
        known_line = (lines or {}).get(name)
        op = _op(value) if isinstance(value, ast.expr) else type(statement).__name__.lower()
        owner, _, method = op.partition(".")
        call = Call(
            name,
            f".{method}" if owner in uses and method else op,
            uses,
            _written(text, statement),
            last[len(body) :].partition("#")[2].strip(),
            place,
            code,
        )
        if known_line is not None:
            code_of, module = str(known_line.code), str(known_line.module)
            call = replace(call, place=known_line.place, code=code_of, module=module)
        calls.append(call)
    return Graph(tuple(names), tuple(calls), outputs)


def read_function(source: str) -> Graph:
    """The function of a small script, every call of its expressions by itself; raises `NotAGraph` where it branches.

    >>> [call.op for call in read_function("def f(x):\\n    return torch.relu(x).sum() + 1").calls]
    ['torch.relu', '.sum', '+']
    """
    tree = _parsed(source)
    function = _function(tree, ("f", "forward"))
    names = tuple(each.arg for each in function.args.args if each.arg != "self")
    flow = _Flow({name: (name,) for name in names})
    try:
        outputs = flow.follow(function.body)
    except RecursionError:
        raise NotAGraph("its expressions are nested too deeply") from None
    return Graph(names, tuple(flow.calls), outputs, dict(_made(tree, names, source.splitlines())))


class _Flow:
    """Follows values through straight Python: each name stands for the calls whose results it holds."""

    def __init__(self, values: dict[str, tuple[str, ...]]) -> None:
        self.values = values
        self.calls: list[Call] = []

    def follow(self, body: Sequence[ast.stmt]) -> tuple[str, ...]:
        for statement in body:
            if isinstance(statement, ast.Return):
                return self.of(statement.value) if statement.value is not None else ()
            if isinstance(statement, ast.With):
                found = self.follow(statement.body)
                if found:
                    return found
            elif isinstance(statement, ast.AugAssign):
                sign = _SIGNS.get(type(statement.op), "?") + "="
                value = self._call(sign, (*self.of(statement.target), *self.of(statement.value)))
                self._bind(statement.target, value)
            elif isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
                value = self.of(statement.value)
                for target in _assigned(statement):
                    self._bind(target, value)
            elif isinstance(statement, ast.Expr):
                self.of(statement.value)
            elif not isinstance(statement, (ast.Pass, ast.Import, ast.ImportFrom, ast.AnnAssign)):
                raise NotAGraph(f"it has a {type(statement).__name__.lower()} statement")
        return ()

    def of(self, node: ast.expr) -> tuple[str, ...]:
        """The calls and inputs that a value comes from."""
        if isinstance(node, ast.Name):
            return self.values.get(node.id, ())
        if isinstance(node, ast.Call):
            given = [*node.args, *(each.value for each in node.keywords)]
            base = self.of(node.func.value) if isinstance(node.func, ast.Attribute) else self.of(node.func)
            uses = [*base, *(each for value in given for each in self.of(value))]
            return self._call(f".{_last(node.func)}" if base else _dotted(node.func), uses)
        if isinstance(node, ast.BinOp):
            sign = _SIGNS.get(type(node.op), type(node.op).__name__.lower())
            return self._call(sign, (*self.of(node.left), *self.of(node.right)))
        if isinstance(node, (ast.UnaryOp, ast.Compare, ast.Subscript, ast.Attribute)):
            uses = [
                each
                for child in ast.iter_child_nodes(node)
                if isinstance(child, ast.expr)
                for each in self.of(child)
            ]
            return self._call(_op(node), uses) if uses else ()
        if isinstance(
            node, (ast.Lambda, ast.ListComp, ast.GeneratorExp, ast.IfExp, ast.DictComp, ast.SetComp)
        ):
            raise NotAGraph("its expressions branch or loop")
        return tuple(
            each
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.expr)
            for each in self.of(child)
        )

    def _call(self, op: str, uses: Sequence[str]) -> tuple[str, ...]:
        name = f"call {len(self.calls) + 1}"
        self.calls.append(Call(name, op, tuple(dict.fromkeys(uses))))
        return (name,)

    def _bind(self, target: ast.expr, value: tuple[str, ...]) -> None:
        for name in (each.id for each in ast.walk(target) if isinstance(each, ast.Name)):
            self.values[name] = value


def _parsed(source: str) -> ast.Module:
    if len(source) > MOST_TEXT:
        raise NotAGraph(f"it is longer than {MOST_TEXT >> 20} MiB")
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as why:
        raise NotAGraph(f"it is not Python ({type(why).__name__})") from None


def _function(tree: ast.Module, wanted: tuple[str, ...]) -> ast.FunctionDef:
    """The function of one of these names, at the top or in a class; where there is none, the only one at the top."""
    classes = [each for each in tree.body if isinstance(each, ast.ClassDef)]
    tops = [each for each in tree.body if isinstance(each, ast.FunctionDef)]
    inner = [each for owner in reversed(classes) for each in owner.body if isinstance(each, ast.FunctionDef)]
    for found in (*tops, *inner):
        if found.name in wanted:
            return found
    if len(tops) == 1:
        return tops[0]
    raise NotAGraph("there is not one function in it" if tops else "there is no function in it")


def _targets(statement: ast.stmt) -> Iterator[str]:
    for target in _assigned(statement):
        yield from (each.id for each in ast.walk(target) if isinstance(each, ast.Name))


def _assigned(statement: ast.stmt) -> list[ast.expr]:
    if isinstance(statement, ast.Assign):
        return statement.targets
    return [statement.target] if isinstance(statement, (ast.AnnAssign, ast.AugAssign)) else []


def _names(tree: ast.AST, known: set[str]) -> tuple[str, ...]:
    found = [each for each in ast.walk(tree) if isinstance(each, ast.Name) and each.id in known]
    found.sort(key=lambda each: (each.lineno, each.col_offset))
    return tuple(dict.fromkeys(each.id for each in found))


def _op(node: ast.expr) -> str:
    """What an expression does: `torch.relu`, `+`, `[]`, `.T`."""
    if isinstance(node, ast.Call):
        return _dotted(node.func)
    if isinstance(node, ast.BinOp):
        return _SIGNS.get(type(node.op), type(node.op).__name__.lower())
    if isinstance(node, ast.Subscript):
        return "[]"
    if isinstance(node, ast.Attribute):
        return f".{node.attr}"
    if isinstance(node, ast.UnaryOp):
        return {ast.USub: "-", ast.Invert: "~", ast.Not: "not"}.get(type(node.op), "+")
    return type(node).__name__.lower()


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else _dotted(node)


def _dotted(node: ast.expr) -> str:
    """`torch.ops.aten.relu.default`; of what is called on a value, the method: `.view`."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return "." + ".".join(reversed(parts)) if parts else type(node).__name__.lower()
    return ".".join([node.id, *reversed(parts)])


def _written(text: Sequence[str], statement: ast.stmt) -> str:
    first, last = statement.lineno - 1, (statement.end_lineno or statement.lineno) - 1
    if first == last:
        raw = text[first].encode()[statement.col_offset : statement.end_col_offset]
        return raw.decode(errors="replace")
    return " ".join(line.strip() for line in text[first : last + 1])


def _made(tree: ast.Module, names: Sequence[str], text: Sequence[str]) -> Iterator[tuple[str, str]]:
    """How the inputs of a script are made: the last `x = ...` at its top."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
            if isinstance(target, ast.Name) and target.id in names:
                yield target.id, _written(text, statement).partition("=")[2].strip()
