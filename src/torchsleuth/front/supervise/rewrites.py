"""A line that cannot be captured, written another way that means the same: a table of rewrites on the syntax tree.

Each rule looks at one statement of a function, the innermost around the line first, and says what could stand in its
place. Whether that is equal is not decided here: the program runs with it, and its calls are compared with those of
the text as it was.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import Any

from torchsleuth.core.changes import with_lines

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Rewrite:
    """What stands in lines `first` to `last` of a file instead of `before`; `gives_up` says what is different then."""

    name: str
    first: int
    last: int
    before: str
    after: str
    gives_up: str


def rewrites_of(text: str, function: str, line: int) -> list[Rewrite]:
    """What could be written in place of a line of a function, the closest to the text first.

    >>> rewrites_of("import torch\\ndef f(x):\\n    if x.sum() > 0:\\n        x = -x\\n    return x", "f", 3)[0].after
    '    x = torch.where(x.sum() > 0, -x, x)'
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    torch = _name_of_torch(tree)
    around = _function_around(tree, function, line)
    if torch is None or around is None:
        return []
    lines = text.splitlines()
    found = [
        _written(idea, lines, torch)
        for block, place in _statements_around(around, line)
        if _has_its_lines(block[place], lines)
        for rule in RULES
        for idea in rule(block, place)
    ]
    return [each for each in dict.fromkeys(found) if _is_python(text, each)]


def _has_its_lines(node: ast.stmt, lines: Sequence[str]) -> bool:
    """Whether nothing but a comment stands in the lines of a statement beside it."""
    begin = lines[node.lineno - 1].encode()
    end = lines[(node.end_lineno or node.lineno) - 1].encode()[node.end_col_offset or 0 :].strip()
    alone = not begin[: node.col_offset].strip() and (not end or end.startswith(b"#"))
    return alone and not begin.strip().startswith(b"elif ")


def _is_python(text: str, rewrite: Rewrite) -> bool:
    try:
        ast.parse(with_lines(text, rewrite.first, rewrite.last, rewrite.after))
    except SyntaxError:
        return False
    return True


def _written(idea: Idea, lines: Sequence[str], torch: str) -> Rewrite:
    first, last = idea.replaced[0].lineno, idea.replaced[-1].end_lineno or idea.replaced[-1].lineno
    margin = " " * idea.replaced[0].col_offset
    after = idea.after if torch == "torch" else idea.after.replace("torch.", f"{torch}.")
    return Rewrite(
        idea.name,
        first,
        last,
        "\n".join(lines[first - 1 : last]),
        indent(after, margin),
        idea.gives_up,
    )


def _name_of_torch(tree: ast.Module) -> str | None:
    """What a file calls torch at its top: `th` after `import torch as th`; None where it has no name for it."""
    names = [
        alias.asname or "torch"
        for node in tree.body
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "torch" or (alias.name.startswith("torch.") and alias.asname is None)
    ]
    return names[0] if names else None


def _function_around(tree: ast.Module, name: str, line: int) -> Function | None:
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, Function) and node.name == name and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return max(found, key=lambda node: node.lineno, default=None)


def _statements_around(function: Function, line: int) -> list[tuple[list[ast.stmt], int]]:
    """The statements of a function that hold a line, the innermost first, each by its block and its place there."""
    found: list[tuple[list[ast.stmt], int]] = []
    block: list[ast.stmt] | None = function.body
    while block:
        place = next((i for i, s in enumerate(block) if s.lineno <= line <= (s.end_lineno or 0)), None)
        if place is None or isinstance(block[place], (Function, ast.ClassDef)):
            break
        found.insert(0, (block, place))
        inside = [getattr(block[place], name, None) for name in ("body", "orelse", "finalbody")]
        inside += [handler.body for handler in getattr(block[place], "handlers", ())]
        block = next((b for b in inside if isinstance(b, list) and b and _holds(b, line)), None)
    return found


def _holds(block: list[ast.stmt], line: int) -> bool:
    return block[0].lineno <= line <= (block[-1].end_lineno or 0)


# -- the rules: each looks at a statement by its block and its place there

# Calls that make a Python number of a tensor's.
_NUMBERS = {"float", "int", "bool"}
# Functions of torch whose result is a Python bool, and the same as a tensor.
_AS_TENSOR = {"allclose": "torch.isclose({}).all()", "equal": "torch.eq({}).all()"}
_LOGICAL: dict[type[ast.boolop], str] = {ast.And: "torch.logical_and", ast.Or: "torch.logical_or"}
_SINGLE = (ast.Assign, ast.AugAssign, ast.AnnAssign)
_EQUAL = "nothing: it means the same when nothing is compiled"
_BOTH = "leaving one side out: both are computed at each call, and then one of them is taken"


@dataclass(frozen=True)
class Idea:
    """The statements that a rule puts in place of some others."""

    name: str
    replaced: Sequence[ast.stmt]
    after: str
    gives_up: str


Rule = Callable[[list[ast.stmt], int], Iterator[Idea]]


def _branch_assigned(block: list[ast.stmt], place: int) -> Iterator[Idea]:
    """`if c: x = a` and `else: x = b`, of which both sides can be computed."""
    node = block[place]
    if not isinstance(node, ast.If):
        return
    yes, no = _assigned(node.body), _assigned(node.orelse)
    if yes is None or (node.orelse and no is None):
        return
    targets = list(dict.fromkeys([*yes, *(no or {})]))
    test, lines = _condition(node.test), []
    if len(targets) > 1:  # the condition is that of before the first of them
        test, lines = "chosen", [f"chosen = {test}"]
    for target in targets:
        lines.append(
            f"{target} = torch.where({test}, {yes.get(target, target)}, {(no or {}).get(target, target)})"
        )
    yield Idea("torch.where in place of if", [node], "\n".join(lines), _BOTH)


def _branch_returned(block: list[ast.stmt], place: int) -> Iterator[Idea]:
    """`if c: return a` and then `return b`."""
    node = block[place]
    if not isinstance(node, ast.If):
        return
    after = node.orelse or block[place + 1 : place + 2]
    sides = [part[0] for part in (node.body, after) if len(part) == 1]
    if len(sides) != 2 or not all(isinstance(side, ast.Return) and side.value for side in sides):
        return
    yes, no = (ast.unparse(side.value) for side in sides)  # type: ignore[attr-defined]
    replaced = [node] if node.orelse else [node, sides[1]]
    text = f"return torch.where({_condition(node.test)}, {yes}, {no})"
    yield Idea("torch.where in place of if", replaced, text, _BOTH)


def _branch_raising(block: list[ast.stmt], place: int) -> Iterator[Idea]:
    """`if c: raise E("why")`: an assertion becomes a check inside of the graph."""
    node = block[place]
    if not isinstance(node, ast.If) or node.orelse or len(node.body) != 1:
        return
    raised = node.body[0]
    if not isinstance(raised, ast.Raise) or raised.exc is None:
        return
    said = raised.exc.args[:1] if isinstance(raised.exc, ast.Call) else []
    why = said[0].value if said and isinstance(said[0], ast.Constant) else f"not {ast.unparse(node.test)}"
    text = f"assert torch.logical_not({_condition(node.test)}), {why!r}"
    yield Idea(
        "assert in place of raise",
        [node],
        text,
        f"{ast.unparse(raised.exc).partition('(')[0]}: an AssertionError, or when compiled a RuntimeError, is raised",
    )


# What takes the place of an expression somewhere in a simple statement.


def _inside(written: Callable[[ast.expr], str | None], name: str, gives_up: str) -> Rule:
    """A rule for expressions of a statement; of a loop or a branch only those of its head are looked at."""

    def rule(block: list[ast.stmt], place: int) -> Iterator[Idea]:
        changed, replaces = copy.deepcopy(block[place]), _Replaces(written)
        for field, value in ast.iter_fields(changed):
            if isinstance(value, ast.expr):
                setattr(changed, field, replaces.visit(value))
        if replaces.done:
            yield Idea(name, [block[place]], ast.unparse(changed), gives_up)

    return rule


def _where_of_choice(node: ast.expr) -> str | None:
    """For `a if c else b`."""
    if not isinstance(node, ast.IfExp):
        return None
    return f"torch.where({_condition(node.test)}, {ast.unparse(node.body)}, {ast.unparse(node.orelse)})"


def _tensor_of_number(node: ast.expr) -> str | None:
    """For `x.item()` and `float(x)`, where a tensor would do."""
    if not isinstance(node, ast.Call) or node.keywords:
        return None
    if isinstance(node.func, ast.Attribute) and node.func.attr == "item" and not node.args:
        return f"({ast.unparse(node.func.value)})"
    if isinstance(node.func, ast.Name) and node.func.id in _NUMBERS and len(node.args) == 1:
        return f"({ast.unparse(node.args[0])})"
    return None


def _unbound(node: ast.expr) -> str | None:
    """For `x.tolist()`, whose numbers go back into tensors."""
    return f"{ast.unparse(node.func.value)}.unbind(0)" if _method(node) == "tolist" else None  # type: ignore[attr-defined]


def _clone(node: ast.expr) -> str | None:
    """For `copy.deepcopy(x)` of a tensor."""
    if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
        return None
    name = ast.unparse(node.func).rpartition(".")[2]
    return f"({ast.unparse(node.args[0])}).clone()" if name == "deepcopy" else None


def _loop(block: list[ast.stmt], place: int) -> Iterator[Idea]:
    """`while c: x = a`: a loop inside of the graph over what it assigns."""
    node = block[place]
    carried = _assigned(node.body) if isinstance(node, ast.While) and not node.orelse else None
    if carried is None or not isinstance(node, ast.While) or not all(n.isidentifier() for n in carried):
        return
    names = ", ".join(carried)
    values = "".join(f"{value}, " for value in carried.values()).rstrip()
    begins = "".join(f"{name}, " for name in carried).rstrip()
    text = (
        f"{begins} = torch.while_loop(lambda {names}: {_condition(node.test)}, "
        f"lambda {names}: ({values}), ({begins}))"
    )
    yield Idea("torch.while_loop in place of while", [node], text, _EQUAL)


def _left_out(block: list[ast.stmt], place: int) -> Iterator[Idea]:
    """A call whose result nobody uses: it prints, logs or warns."""
    node = block[place]
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return
    called = ast.unparse(node.value.func)
    text = f"if not torch.compiler.is_compiling():\n    {ast.unparse(node)}"
    yield Idea(f"{called} only when not compiled", [node], text, f"the call of {called} when compiled")


# The order in which a line is tried.
RULES: tuple[Rule, ...] = (
    _branch_assigned,
    _branch_returned,
    _branch_raising,
    _loop,
    _inside(_clone, "clone in place of deepcopy", _EQUAL),
    _inside(_unbound, "unbind in place of tolist", _EQUAL),
    _inside(_where_of_choice, "torch.where in place of if", _BOTH),
    _inside(_tensor_of_number, "a tensor in place of a number", _EQUAL),
    _left_out,
)


# ---- parts of them


def _assigned(block: Sequence[ast.stmt]) -> dict[str, str] | None:
    """What a block assigns, by the text of the target; None where it does anything else, or uses what it assigned."""
    found: dict[str, str] = {}
    for node in block:
        if not isinstance(node, _SINGLE) or node.value is None:
            return None
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if len(targets) != 1 or not isinstance(targets[0], (ast.Name, ast.Attribute)):
            return None
        target, value = ast.unparse(targets[0]), copy.deepcopy(node.value)
        if isinstance(node, ast.AugAssign):
            value = ast.BinOp(ast.parse(target, mode="eval").body, node.op, value)
        used = {ast.unparse(each) for each in ast.walk(value) if isinstance(each, (ast.Name, ast.Attribute))}
        if used & found.keys() or target in found:
            return None
        found[target] = ast.unparse(value)
    return found or None


def _condition(test: ast.expr) -> str:
    """A test as a tensor of bool, where what it asks is one.

    >>> _condition(ast.parse("x.sum().item() > 0 and not y.any()", mode="eval").body)
    'torch.logical_and(x.sum() > 0, torch.logical_not(y.any() != 0))'
    """
    test = _Replaces(_tensor_of_number).visit(copy.deepcopy(test))
    if isinstance(test, ast.BoolOp):
        first, *rest = [_condition(each) for each in test.values]
        for each in rest:
            first = f"{_LOGICAL[type(test.op)]}({first}, {each})"
        return first
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return f"torch.logical_not({_condition(test.operand)})"
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return ast.unparse(test)
    if isinstance(test, ast.Call) and _method(test) in _AS_TENSOR and len(test.args) > 1:
        given = ", ".join(ast.unparse(each) for each in (*test.args, *test.keywords))
        return _AS_TENSOR[str(_method(test))].format(given)
    return f"{ast.unparse(test)} != 0"


def _method(node: ast.expr) -> str | None:
    return node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None


class _Replaces(ast.NodeTransformer):
    """Puts what `written` says in the place of each expression it has something for, the innermost first."""

    def __init__(self, written: Callable[[ast.expr], str | None]) -> None:
        self.written = written
        self.done = 0

    def visit(self, node: ast.AST) -> Any:
        node = self.generic_visit(node)
        text = self.written(node) if isinstance(node, ast.expr) else None
        if text is None:
            return node
        self.done += 1
        return ast.parse(text, mode="eval").body
