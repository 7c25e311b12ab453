"""A line that cannot be captured, written another way that means the same: a table of rewrites on the syntax tree.

Each rule looks at one statement of a function, the innermost around the line first, and says what could stand in its
place. Whether that is equal is not decided here: the program runs with it, and its calls are compared with those of
the text as it was.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import indent

from torchsleuth.core.changes import with_lines
from torchsleuth.front.program.rewrite_rules import RULES, Idea

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
