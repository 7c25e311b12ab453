"""A program on its way to being small: a syntax tree that is never changed in place, and its text.

Every node keeps its number for life, so an edit that names a node still means it after other edits, or finds it gone.
A changed tree becomes a program only if Python would compile it and no name in it has lost its meaning. What is left in
the end as it was is written as it was: in the words of the given program.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import copy
import functools
import itertools
import math
import symtable
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

_NUMBERED = (ast.stmt, ast.expr, ast.arg, ast.keyword, ast.alias, ast.excepthandler, ast.match_case)
_LISTS = ("body", "orelse", "finalbody")
# What every module has beside its own names.
_KNOWN = frozenset([*dir(builtins), "__file__", "__builtins__", "__annotations__", "__class__"])


@dataclass(frozen=True)
class Program:
    """A program as a state of a search: `parsed("import torch\\nprint(torch)").text`."""

    tree: ast.Module
    text: str
    # Names that nobody binds and that are used all the same, in the program as it was given: star imports, mostly.
    given: frozenset[str] = frozenset()
    # Attributes that the given program sets or defines: who reads one that is gone fails for that reason alone.
    attributes: frozenset[str] = frozenset()

    @cached_property
    def size(self) -> tuple[int, *tuple[float | str, ...]]:
        """Statements first, a block counting twice, then what there is in them, then the numbers and letters."""
        nodes = list(ast.walk(self.tree))
        blocks = sum(hasattr(node, "body") and isinstance(node, ast.stmt) for node in nodes)
        numbers = [_magnitude(node.value) for node in nodes if isinstance(node, ast.Constant)]
        return (
            sum(isinstance(node, ast.stmt) and not isinstance(node, ast.Pass) for node in nodes) + blocks,
            sum(isinstance(node, _NUMBERED) for node in nodes),
            sum(numbers),
            len(self.text),
            self.text,
        )

    @property
    def key(self) -> str:
        """The same text is the same question."""
        return self.text

    @property
    def amount(self) -> tuple[int, str]:
        return lines_of(self.text), "lines"


def parsed(text: str) -> Program:
    """The program that a text is; raises `SyntaxError` where it is none.

    >>> parsed("x  =  1  # one").text
    'x = 1'
    """
    tree = ast.parse(text)
    _number(tree)
    plain = ast.unparse(tree)
    return Program(tree, plain, unbound(plain), frozenset(_attributes(tree)[0]))


def change_of(nodes: int) -> Callable[[Callable[..., bool]], Callable[..., Program | None]]:
    """Makes an edit of `change(tree, *nodes, *arguments)`, which changes a copy of the program's tree in place.

    The edit is called with the program and the numbers of so many nodes. It gives None where one of those is gone,
    where `change` says False, or where no program comes of it.
    """

    def made(change: Callable[..., bool]) -> Callable[..., Program | None]:
        @functools.wraps(change)
        def edit(program: Program, *arguments: Any) -> Program | None:
            tree = copy.deepcopy(program.tree)
            numbered = {number_of(node): node for node in ast.walk(tree)} if nodes else {}
            named = [numbered.get(number) for number in arguments[:nodes]]
            fits = None not in named and change(tree, *named, *arguments[nodes:])
            return _program_of(tree, program) if fits else None

        return edit

    return made


def _program_of(tree: ast.Module, before: Program) -> Program | None:
    """The program of a changed tree; None where Python would not compile it, or a name has lost its meaning."""
    _mend(tree)
    _number(tree)
    try:
        text = ast.unparse(ast.fix_missing_locations(tree))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            compile(text, "<program>", "exec", dont_inherit=True)
        lost = unbound(text) - before.given
    except (SyntaxError, ValueError, RecursionError):
        return None
    there, read = _attributes(tree)
    lost |= {name for name in (read - there) & before.attributes if not name.startswith("__")}
    return None if lost else replace(before, tree=tree, text=text)


def number_of(node: ast.AST | None) -> int:
    """The number of a node, 0 for what has none: `Edit("drop x", without_node, (number_of(node),))`."""
    return getattr(node, "number", 0)


def statement_lists(tree: ast.AST) -> Iterator[tuple[ast.AST, str, list[ast.stmt]]]:
    """Every list of statements: whose it is, as which field, and the list itself."""
    for owner in ast.walk(tree):
        for name in _LISTS:
            found = getattr(owner, name, None)
            if isinstance(found, list):
                yield owner, name, found


def names_in(tree: ast.AST, context: type[ast.expr_context] = ast.expr_context) -> list[ast.Name]:
    """The names that a tree uses, or only those that it reads or sets: `names_in(tree, ast.Store)`."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, context)]


def is_name(node: ast.AST, name: str) -> bool:
    """Whether a node is that name: `is_name(call.func, "print")`."""
    return isinstance(node, ast.Name) and node.id == name


def put(tree: ast.AST, old: ast.AST, new: Sequence[ast.AST]) -> bool:
    """Puts `new` in the place of a node: in a list any number of nodes, elsewhere mostly one."""
    for owner in ast.walk(tree):
        for name, value in ast.iter_fields(owner):
            if isinstance(value, list):
                for place, item in enumerate(value):
                    if item is old:
                        value[place : place + 1] = new
                        return True
            elif value is old:
                optional = name == "optional_vars"
                if new or optional:
                    setattr(owner, name, new[0] if new else None)
                return optional or len(new) == 1
    return False


@change_of(nodes=1)
def without_node(tree: ast.Module, node: ast.AST) -> bool:
    """The program without a node: `without_node(program, number_of(node))`."""
    return put(tree, node, [])


def replace_each(tree: ast.AST, other: Callable[[ast.AST], ast.AST]) -> None:
    """Puts `other(node)` in the place of each node, inner ones first; most are given back as they are."""
    _Replacing(other).visit(tree)


class _Replacing(ast.NodeTransformer):
    def __init__(self, other: Callable[[ast.AST], ast.AST]) -> None:
        self.other = other

    def visit(self, node: ast.AST) -> ast.AST:
        return self.other(self.generic_visit(node))


def unbound(text: str) -> frozenset[str]:
    """The names that are used in a program and bound nowhere they could be seen from.

    >>> sorted(unbound("def f(x): return x + y"))
    ['y']
    """
    table = symtable.symtable(text, "<program>", "exec")
    scopes = [table]
    for scope in scopes:
        scopes += scope.get_children()
    bound = [s for s in table.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()]
    known = {symbol.get_name() for symbol in bound}
    known |= {s.get_name() for scope in scopes for s in scope.get_symbols() if s.is_declared_global()}
    used = {
        symbol.get_name()
        for scope in scopes
        for symbol in scope.get_symbols()
        if symbol.is_referenced() and (symbol.is_global() or scope is table)
    }
    return frozenset(used - known - _KNOWN)


def _attributes(tree: ast.AST) -> tuple[set[str], set[str]]:
    """The attributes that a program sets or defines in a class, and those that it reads."""
    there: set[str] = set()
    read: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            (read if isinstance(node.ctx, ast.Load) else there).add(node.attr)
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                there |= {
                    getattr(inner, "name", ""),
                    *(n.id for n in ast.walk(inner) if isinstance(n, ast.Name)),
                }
    return there, read


def _number(tree: ast.AST) -> None:
    """Gives a number to each node that has none, or that of another."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, _NUMBERED)]
    seen: set[int] = set()
    fresh = itertools.count(max(map(number_of, nodes), default=0) + 1)
    for node in nodes:
        if not number_of(node) or number_of(node) in seen:
            node.__dict__["number"] = next(fresh)
        seen.add(number_of(node))


def _mend(tree: ast.AST) -> None:
    """Bodies that were emptied get a `pass`, those with more than that lose theirs."""
    for owner, name, body in list(statement_lists(tree)):
        body[:] = [each for each in body if not isinstance(each, ast.Pass)]
        if not body and name == "body" and not isinstance(owner, ast.Module):
            body.append(ast.Pass())
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and not node.handlers:
            node.orelse = []
            node.finalbody = node.finalbody or [ast.Pass()]


def _magnitude(value: object) -> float:
    """Nought and one are the plainest, then whole numbers by their size, then any other."""
    if type(value) not in (int, float) or value in (0, 1):
        return 0.0
    assert isinstance(value, (int, float))
    return min(abs(value), 1e9) + (0 if value == int(value) else 2) if math.isfinite(value) else 1e9


def as_written(program: Program, given: str) -> str:
    """The program's text, with each line that stood in `given` as it stood there, less comments.

    >>> as_written(parsed("f( 'a' )"), "f( 'a' )  # why")
    "f( 'a' )\\n"
    """
    known = _heads(given)
    lines = program.text.splitlines()
    plain = ast.parse(program.text)
    for node in ast.walk(plain):
        if isinstance(node, ast.stmt) and _ends(node) == node.lineno:
            head = known.get(_key(node))
            if head is not None:
                lines[node.lineno - 1] = lines[node.lineno - 1][: node.col_offset] + head
    made = "\n".join(lines).strip() + "\n"
    with contextlib.suppress(SyntaxError):
        if ast.dump(ast.parse(made)) == ast.dump(plain):
            return made
    return program.text + "\n"


def _heads(text: str) -> dict[str, str]:
    """What every statement, or head of a block, says that takes one line of its own."""
    lines = text.splitlines()
    found = {}
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.stmt) or _ends(node) != node.lineno:
            continue
        raw = lines[node.lineno - 1].encode()
        if raw[: node.col_offset].strip():  # something stands before it
            continue
        if hasattr(node, "body"):
            head = raw[node.col_offset :].decode().partition("  #")[0].rstrip()
            if head.endswith(":"):
                found[_key(node)] = head
        else:
            found[_key(node)] = raw[node.col_offset : node.end_col_offset].decode()
    return found


def _ends(node: ast.stmt) -> int:
    """The last line of a statement or of the head of a block."""
    body = getattr(node, "body", None)
    if body:
        return int(body[0].lineno) - 1 if not getattr(body[0], "decorator_list", None) else 0
    return node.end_lineno or node.lineno


def _key(node: ast.stmt) -> str:
    """Equal for statements that say the same, blocks without what stands in them."""
    head = copy.copy(node)
    for name in ("body", "orelse", "finalbody", "handlers", "cases", "decorator_list"):
        if hasattr(head, name):
            setattr(head, name, [])
    return ast.dump(head)


def lines_of(text: str) -> int:
    """How many lines of a program say something.

    >>> lines_of("def f():\\n\\n    return 1")
    2
    """
    return sum(bool(line.strip()) for line in text.splitlines())
