"""Fewer statements: level by level from the outside, the larger part first, then what hangs together by a name."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from torchsleuth.search.minify.python.program import Nodes, Program, changed, number_of, statement_lists
from torchsleuth.search.minify.search.contract import Edit
from torchsleuth.search.minify.search.engine import Engine
from torchsleuth.search.minify.search.subsets import Subset, counted, one_less

NAME = "statements"


def reduce_statements(engine: Engine[Program]) -> Program:
    """The program with as few statements as still fail; none of those left can go by itself."""
    depth = 0
    while level := _level(engine.best, depth):
        ask = _Ask(engine, engine.best, tuple(level))
        everything = tuple(range(len(level)))
        if ask([()]) is None:
            one_less(counted(everything, ask), ask)
        depth += 1
    return engine.best


@dataclass(frozen=True)
class _Ask:
    """Asks whether the program still fails with only some of a level's statements; what does becomes the best."""

    engine: Engine[Program]
    program: Program
    level: tuple[int, ...]

    def __call__(self, subsets: Sequence[Subset]) -> int | None:
        found = self.engine.first(NAME, [(self._what(s), partial(self._with, s)) for s in subsets])
        if found is None:
            return None
        self.engine.accept(NAME, found[1])
        return found[0]

    def each(self, subsets: Sequence[Subset]) -> list[bool | None]:
        found = self.engine.each(NAME, [(self._what(s), partial(self._with, s)) for s in subsets])
        for program, failed in found.values():
            if failed:
                self.engine.accept(NAME, program)
        last = max(found, default=len(subsets))
        # What makes no program was not asked, and does not fail.
        return [found[n][1] if n in found else False if n < last else None for n in range(len(subsets))]

    def _what(self, subset: Subset) -> str:
        return f"{len(subset)} of {len(self.level)} statements"

    def _with(self, subset: Subset) -> Program | None:
        kept = {self.level[n] for n in subset}
        return without(self.program, frozenset(n for n in self.level if n not in kept))


def _level(program: Program, depth: int) -> list[int]:
    """The numbers of the statements at a depth, in the order of the text."""
    found = list(program.tree.body)
    for _ in range(depth):
        found = [inner for outer in found for inner in _inside(outer)]
    return [number_of(s) for s in found if not isinstance(s, ast.Pass)]


def _inside(statement: ast.AST) -> Iterator[ast.stmt]:
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.stmt):
            yield child
        elif isinstance(child, (ast.excepthandler, ast.match_case)):
            yield from _inside(child)


def without(program: Program, numbers: frozenset[int]) -> Program | None:
    """The program without these statements: `without(program, frozenset([3]))`."""

    def change(tree: ast.Module, nodes: Nodes) -> bool:
        for _, _, body in statement_lists(tree):
            body[:] = [each for each in body if number_of(each) not in numbers]
        return bool(numbers & nodes.keys())

    return changed(program, change)


def drop_names(program: Program) -> Iterator[Edit[Program]]:
    """A variable or attribute, with every statement that mentions it."""
    bound = [n.id for n in ast.walk(program.tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    kept = [
        n.attr
        for n in ast.walk(program.tree)
        if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)
    ]
    for name in dict.fromkeys([*bound, *kept]):
        yield Edit(f"all about {name}", _without_name, (name,))


def _without_name(program: Program, name: str) -> Program | None:
    def change(tree: ast.Module, nodes: Nodes) -> bool:
        for _, _, body in statement_lists(tree):
            body[:] = [each for each in body if not _mentions(each, name)]
        return True

    return changed(program, change)


def _mentions(statement: ast.stmt, name: str) -> bool:
    """Whether a statement itself, not one inside it, says the name."""
    queue: list[ast.AST] = [statement]
    while queue:
        node = queue.pop()
        if (isinstance(node, ast.Name) and node.id == name) or getattr(node, "attr", None) == name:
            return True
        queue += [
            child
            for child in ast.iter_child_nodes(node)
            if not isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case, ast.arguments))
        ]
    return False
