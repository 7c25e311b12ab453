"""Fewer statements: level by level from the outside, the larger part first, then what hangs together by a name.

Blocks give way to what stands in them, and containers to what they hold: the first element for the list, one variable
for several.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from functools import partial

from torchsleuth.search.minify.contract import Edit
from torchsleuth.search.minify.engine import AsksSubsets, Engine
from torchsleuth.search.minify.python.program import (
    Program,
    change_of,
    is_name,
    names_in,
    number_of,
    put,
    replace_each,
    statement_lists,
)
from torchsleuth.search.minify.subsets import Subset, counted, one_less

NAME = "statements"
_BLOCKS = (ast.With, ast.AsyncWith, ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.Match)


def reduce_statements(engine: Engine[Program]) -> Program:
    """The program with as few statements as still fail; none of those left can go by itself."""
    depth = 0
    while level := _level(engine.best, depth):
        ask = AsksSubsets(engine, NAME, len(level), partial(_with_only, engine.best, level))
        if ask([()]) is None:
            one_less(counted(tuple(range(len(level))), ask), ask)
        depth += 1
    return engine.best


def _with_only(program: Program, level: Sequence[int], kept: Subset) -> Program | None:
    return _without(program, frozenset(level) - {level[place] for place in kept})


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


@change_of(nodes=0)
def _without(tree: ast.Module, numbers: frozenset[int]) -> bool:
    before = after = 0
    for _, _, body in statement_lists(tree):
        before += len(body)
        body[:] = [each for each in body if number_of(each) not in numbers]
        after += len(body)
    return after < before


def drop_names(program: Program) -> Iterator[Edit[Program]]:
    """A variable or attribute, with every statement that mentions it."""
    kept = [
        n.attr
        for n in ast.walk(program.tree)
        if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)
    ]
    for name in dict.fromkeys([*(n.id for n in names_in(program.tree, ast.Store)), *kept]):
        yield Edit(f"all about {name}", _without_name, (name,))


@change_of(nodes=0)
def _without_name(tree: ast.Module, name: str) -> bool:
    for _, _, body in statement_lists(tree):
        body[:] = [each for each in body if not _mentions(each, name)]
    return True


def _mentions(statement: ast.stmt, name: str) -> bool:
    """Whether a statement itself, not one inside it, says the name."""
    queue: list[ast.AST] = [statement]
    while queue:
        node = queue.pop()
        if is_name(node, name) or getattr(node, "attr", None) == name:
            return True
        queue += [
            child
            for child in ast.iter_child_nodes(node)
            if not isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case, ast.arguments))
        ]
    return False


# -- blocks


def unwrap_blocks(program: Program) -> Iterator[Edit[Program]]:
    """A block replaced by one of its bodies; one of its parts dropped."""
    for block in ast.walk(program.tree):
        if not isinstance(block, _BLOCKS):
            continue
        number = number_of(block)
        for part in range(len(_bodies(block))):
            yield Edit(f"unwrap {type(block).__name__.lower()}", _unwrapped, (number, part))
        if isinstance(block, (ast.With, ast.AsyncWith)) and len(block.items) > 1:
            for place in range(len(block.items)):
                yield Edit("drop a context", _without_item, (number, "items", place))
        for place in range(len(getattr(block, "handlers", ()))):
            yield Edit("drop a handler", _without_item, (number, "handlers", place))
        for place in range(len(getattr(block, "cases", ()))):
            yield Edit("drop a case", _without_item, (number, "cases", place))


def _bodies(statement: ast.stmt) -> list[list[ast.stmt]]:
    """What a block may be replaced by."""
    parts: list[list[ast.stmt]] = []
    if isinstance(statement, (ast.For, ast.AsyncFor)):
        parts.append([*_first_turn(statement), *statement.body])
    elif isinstance(statement, (ast.With, ast.AsyncWith)):
        named = [item for item in statement.items if item.optional_vars is not None]
        entered: list[ast.stmt] = [
            ast.Assign(targets=[item.optional_vars], value=item.context_expr)  # type: ignore[list-item]
            for item in named
        ]
        parts += [statement.body, *([[*entered, *statement.body]] if named else [])]
    elif isinstance(statement, ast.Match):
        parts += [case.body for case in statement.cases]
    else:
        parts.append(getattr(statement, "body", []))
    parts += [handler.body for handler in getattr(statement, "handlers", ())]
    return parts + [part for name in ("orelse", "finalbody") if (part := getattr(statement, name, None))]


def _first_turn(loop: ast.For | ast.AsyncFor) -> list[ast.stmt]:
    """The loop's variable as it is the first time round."""
    over = loop.iter
    value: ast.expr
    if isinstance(over, ast.Call) and is_name(over.func, "range"):
        value = ast.Constant(0)
    elif isinstance(over, (ast.List, ast.Tuple)) and over.elts:
        value = over.elts[0]
    else:
        first = ast.Call(ast.Name("iter", ast.Load()), [over], [])
        value = ast.Call(ast.Name("next", ast.Load()), [first], [])
    return [ast.Assign(targets=[loop.target], value=value)]


@change_of(nodes=1)
def _unwrapped(tree: ast.Module, block: ast.stmt, part: int) -> bool:
    bodies = _bodies(block)
    return part < len(bodies) and put(tree, block, bodies[part])


@change_of(nodes=1)
def _without_item(tree: ast.Module, block: ast.stmt, field: str, place: int) -> bool:
    items = getattr(block, field, [])
    if place >= len(items):
        return False
    del items[place]
    return bool(items) or field == "handlers"


# -- containers


def empty_containers(program: Program) -> Iterator[Edit[Program]]:
    """One of several targets, an element by its place, and the first element in the place of a container."""
    for node in ast.walk(program.tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            for place, target in reversed([*enumerate(node.targets[0].elts)]):
                if not isinstance(target, ast.Starred) and _element(node.value, place) is not None:
                    yield Edit(f"{ast.unparse(target)} alone", _one_target, (number_of(node), place))
        elif (held := _walked(node)) is not None:
            yield Edit(f"{ast.unparse(held)}[0]", _by_place, (number_of(node),))
        name, first = _filled(node)
        if first is not None:
            yield Edit(f"{ast.unparse(first)} for {name}", _first_for_all, (number_of(node),))


@change_of(nodes=1)
def _one_target(tree: ast.Module, node: ast.Assign, place: int) -> bool:
    """`b = d` for `a, b = c, d`."""
    if not isinstance(node.targets[0], ast.Tuple) or place >= len(node.targets[0].elts):
        return False
    value = _element(node.value, place)
    if value is not None:
        node.targets[0], node.value = node.targets[0].elts[place], value
    return value is not None


def _element(value: ast.expr, place: int) -> ast.expr | None:
    """What one of several targets gets, where the text tells."""
    if isinstance(value, (ast.Tuple, ast.List)) and place < len(value.elts):
        return value.elts[place]
    if (turn := _argument(value, "next")) is None:
        return None
    over = _argument(turn, "iter") or turn
    if (pairs := _argument(over, "enumerate")) is not None:
        return _first_of(pairs) if place else ast.Constant(0)
    zipped = isinstance(over, ast.Call) and is_name(over.func, "zip") and place < len(over.args)
    return _first_of(over.args[place]) if zipped else None  # type: ignore[attr-defined]


def _argument(value: ast.AST, name: str) -> ast.expr | None:
    """The only argument of a call of the function of that name."""
    called = isinstance(value, ast.Call) and is_name(value.func, name) and len(value.args) == 1
    return value.args[0] if called else None  # type: ignore[attr-defined]


def _walked(value: ast.AST) -> ast.expr | None:
    """What `next(iter(x))` takes the first element of."""
    turn = _argument(value, "next")
    return None if turn is None else _argument(turn, "iter")


def _first_of(value: ast.expr) -> ast.expr:
    return ast.Subscript(value, ast.Constant(0), ast.Load())


@change_of(nodes=1)
def _by_place(tree: ast.Module, node: ast.expr) -> bool:
    held = _walked(node)
    return held is not None and put(tree, node, [_first_of(held)])


def _filled(node: ast.AST) -> tuple[str, ast.expr | None]:
    """The variable that a statement puts elements into, and the first of these: `x.append(a)`, `x = [a, b]`."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        call = node.value
        to = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == "append" else None
        return (to.id, call.args[0]) if isinstance(to, ast.Name) and len(call.args) == 1 else ("", None)
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
        return "", None
    value = node.value
    if (
        isinstance(value, ast.Call) and len(value.args) == 1 and not value.keywords
    ):  # torch.nn.ModuleList([a])
        value = value.args[0]
    held = isinstance(value, (ast.List, ast.Tuple)) and value.elts
    return (node.targets[0].id, value.elts[0]) if held else ("", None)  # type: ignore[attr-defined]


@change_of(nodes=1)
def _first_for_all(tree: ast.Module, node: ast.AST) -> bool:
    """`x = a` for `x = [a, b]` or `x.append(a)`, and `x` for each `x[0]`."""
    name, first = _filled(node)
    if first is None:
        return False

    def whole(part: ast.AST) -> ast.AST:
        numbered = (
            isinstance(part, ast.Subscript)
            and is_name(part.value, name)
            and isinstance(part.slice, ast.Constant)
            and isinstance(part.slice.value, int)
            and isinstance(part.ctx, ast.Load)
        )
        return part.value if numbered else part  # type: ignore[attr-defined]

    replace_each(tree, whole)
    return put(tree, node, [ast.Assign([ast.Name(name, ast.Store())], copy.deepcopy(first))])
