"""Blocks give way to what stands in them: `with`, `if`, `for`, `while`, `try`, `match`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchsleuth.search.minify.python.program import Nodes, Program, changed, number_of, put, statements
from torchsleuth.search.minify.search.contract import Edit

_BLOCKS = (ast.With, ast.AsyncWith, ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.Match)


def unwrap_blocks(program: Program) -> Iterator[Edit[Program]]:
    """A block replaced by one of its bodies; one of its parts dropped."""
    for statement in statements(program.tree):
        if not isinstance(statement, _BLOCKS):
            continue
        number, kind = number_of(statement), type(statement).__name__.lower()
        for part in range(len(_bodies(statement))):
            yield Edit(f"unwrap {kind}", _unwrapped, (number, part))
        if isinstance(statement, (ast.With, ast.AsyncWith)) and len(statement.items) > 1:
            for place in range(len(statement.items)):
                yield Edit("drop a context", _without_item, (number, "items", place))
        for place in range(len(getattr(statement, "handlers", ()))):
            yield Edit("drop a handler", _without_item, (number, "handlers", place))
        for place in range(len(getattr(statement, "cases", ()))):
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
    if isinstance(over, ast.Call) and isinstance(over.func, ast.Name) and over.func.id == "range":
        value = ast.Constant(0)
    elif isinstance(over, (ast.List, ast.Tuple)) and over.elts:
        value = over.elts[0]
    else:
        first = ast.Call(ast.Name("iter", ast.Load()), [over], [])
        value = ast.Call(ast.Name("next", ast.Load()), [first], [])
    return [ast.Assign(targets=[loop.target], value=value)]


def _unwrapped(program: Program, number: int, part: int) -> Program | None:
    def change(tree: ast.Module, nodes: Nodes) -> bool:
        bodies = _bodies(nodes[number]) if number in nodes else []
        return part < len(bodies) and put(tree, number, bodies[part])

    return changed(program, change)


def _without_item(program: Program, number: int, field: str, place: int) -> Program | None:
    def change(tree: ast.Module, nodes: Nodes) -> bool:
        items = getattr(nodes.get(number), field, [])
        if place >= len(items):
            return False
        del items[place]
        return bool(items) or field == "handlers"

    return changed(program, change)
