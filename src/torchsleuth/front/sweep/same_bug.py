"""Whether two failures that looked different turn out to be one bug, once both were made small.

What is left of each is its repro. Two are one bug where the same part of the compiler fails in the same kind of way at
the same calls, however values are named, whatever sizes the inputs have, and whichever backend was put in. Numbers in
the failing function itself count: `sum(0)` may be another bug than `sum(1)`, and no bug may hide behind another.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from torchsleuth.front.sweep.cells import Bucket

# A repro that is larger was not made small.
MOST_TEXT = 200_000


def bug_of(case: Mapping[str, Any], script: str) -> str | None:
    """The bug that a case with this repro shows, as a key; None where the repro cannot be read.

    >>> first = "f = torch.compile(lambda x: x.relu().sum(1), backend='eager')\\nf(torch.ones(3, 4))"
    >>> other = "g = torch.compile(lambda a: a.relu().sum(1))\\ng(torch.ones(2))"
    >>> bug_of({"kind": "crash"}, first) == bug_of({"kind": "crash"}, other) != bug_of({"kind": "hang"}, other)
    True
    """
    try:
        tree = ast.parse(script) if len(script) < MOST_TEXT else ast.Module([], [])
        plain = _Plain(tree)
        calls = [ast.unparse(plain.visit(each)) for each in _what_runs(tree)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    triage = case.get("triage") or {}
    blamed = [str(case.get("kind")), str(triage.get("component")), str(triage.get("part"))]
    return hashlib.sha256("\n".join([*blamed, *calls]).encode()).hexdigest()[:16] if calls else None


def merged(buckets: Iterable[Bucket]) -> list[Bucket]:
    """Buckets of one bug as one, the widespread first; the others stand in its `same`."""
    alike: dict[str, list[Bucket]] = {}
    for bucket in buckets:
        alike.setdefault(bucket.bug or bucket.key, []).append(bucket)
    found = []
    for members in alike.values():
        first, *rest = sorted(members, key=_order)
        cells = tuple(dict.fromkeys(cell for each in members for cell in each.cells))
        found.append(replace(first, cells=cells, same=tuple(rest)))
    return sorted(found, key=_order)


def _order(bucket: Bucket) -> tuple[Any, ...]:
    return -len(bucket.cells), bucket.summary, bucket.cells


def _what_runs(tree: ast.Module) -> Iterator[ast.stmt]:
    """Definitions, inputs and the failing calls, without imports and what the script says about the failure."""
    for statement in tree.body:
        if isinstance(statement, ast.Try):
            yield from statement.body
            return
        text = ast.unparse(statement)
        if text.startswith("shown = "):  # from here on, results are compared
            return
        if not text.startswith(("import ", "from ", "EXPECTED = ", "print(", "'", '"')):
            yield statement


class _Plain(ast.NodeTransformer):
    """Names that the script gives, by number; outside of functions, sizes and values as 0, and no backend."""

    def __init__(self, tree: ast.Module) -> None:
        given = (
            getattr(node, "arg" if isinstance(node, ast.arg) else "name", None)
            for node in ast.walk(tree)
            if isinstance(node, ast.arg | ast.FunctionDef | ast.ClassDef)
        )
        stored = (n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        self.given = {*given, *stored}
        self.numbers: dict[str, str] = {}
        self.inside = False

    def _named(self, name: str) -> str:
        return self.numbers.setdefault(name, f"v{len(self.numbers)}") if name in self.given else name

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self._named(node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(self._named(node.arg))

    def _definition(self, node: Any) -> ast.AST:
        node.decorator_list = [self.visit(each) for each in node.decorator_list]
        decorators, node.decorator_list = node.decorator_list, []
        node.name, outside, self.inside = self._named(node.name), self.inside, True
        self.generic_visit(node)
        node.decorator_list, self.inside = decorators, outside
        return node

    visit_FunctionDef = visit_ClassDef = _definition

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        outside, self.inside = self.inside, True
        self.generic_visit(node)
        self.inside = outside
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.keywords = [each for each in node.keywords if each.arg != "backend"]
        self.generic_visit(node)
        if not self.inside and node.args and all(map(_is_zero, node.args)):
            node.args = node.args[:1]
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        number = isinstance(node.value, int | float | complex) and not isinstance(node.value, bool)
        return ast.Constant(0) if number and not self.inside else node

    def _several(self, node: Any) -> ast.AST:
        self.generic_visit(node)
        folds = not self.inside and isinstance(node.ctx, ast.Load) and all(map(_is_zero, node.elts))
        return ast.Constant(0) if folds else node

    visit_Tuple = visit_List = _several

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return node.operand if not self.inside and _is_zero(node.operand) else node


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0 and not isinstance(node.value, bool)
