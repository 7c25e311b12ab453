"""Containers give way to what they hold: the first element for the list, one variable for several."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

from torchsleuth.search.minify.python.program import Nodes, Program, changed, number_of, put
from torchsleuth.search.minify.search.contract import Edit


def empty_containers(program: Program) -> Iterator[Edit[Program]]:
    """One of several targets, an element by its place, and the first element in the place of a container."""
    for node in ast.walk(program.tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            for place, target in reversed([*enumerate(node.targets[0].elts)]):
                if not isinstance(target, ast.Starred) and _element(node.value, place) is not None:
                    what = f"{ast.unparse(target)} alone"
                    yield Edit(what, _one_target, (number_of(node), place))
        elif isinstance(node, ast.Call) and (held := _walked(node)) is not None:
            yield Edit(f"{ast.unparse(held)}[0]", _by_place, (number_of(node),))
        name, first = _filled(node)
        if first is not None:
            yield Edit(f"{ast.unparse(first)} for {name}", _first_for_all, (number_of(node),))


def _one_target(program: Program, number: int, place: int) -> Program | None:
    """`b = d` for `a, b = c, d`."""

    def change(tree: ast.Module, nodes: Nodes) -> bool:
        node = nodes.get(number)
        if node is None or not isinstance(node.targets[0], ast.Tuple) or place >= len(node.targets[0].elts):
            return False
        value = _element(node.value, place)
        if value is not None:
            node.targets[0], node.value = node.targets[0].elts[place], value
        return value is not None

    return changed(program, change)


def _element(value: ast.expr, place: int) -> ast.expr | None:
    """What one of several targets gets, where the text tells."""
    if isinstance(value, (ast.Tuple, ast.List)) and place < len(value.elts):
        return value.elts[place]
    if (turn := _argument(value, "next")) is None:
        return None
    over = _argument(turn, "iter") or turn
    if (pairs := _argument(over, "enumerate")) is not None:
        return _first_of(pairs) if place else ast.Constant(0)
    zipped = isinstance(over, ast.Call) and isinstance(over.func, ast.Name) and over.func.id == "zip"
    return _first_of(over.args[place]) if zipped and place < len(over.args) else None  # type: ignore[attr-defined]


def _argument(value: ast.AST, name: str) -> ast.expr | None:
    """The only argument of a call of the function of that name."""
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name) or value.func.id != name:
        return None
    return value.args[0] if len(value.args) == 1 else None


def _walked(value: ast.AST) -> ast.expr | None:
    """What `next(iter(x))` takes the first element of."""
    turn = _argument(value, "next")
    return None if turn is None else _argument(turn, "iter")


def _first_of(value: ast.expr) -> ast.expr:
    return ast.Subscript(value, ast.Constant(0), ast.Load())


def _by_place(program: Program, number: int) -> Program | None:
    def change(tree: ast.Module, nodes: Nodes) -> bool:
        held = _walked(nodes[number]) if number in nodes else None
        return held is not None and put(tree, number, [_first_of(held)])

    return changed(program, change)


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


def _first_for_all(program: Program, number: int) -> Program | None:
    """`x = a` for `x = [a, b]` or `x.append(a)`, and `x` for each `x[0]`."""

    def change(tree: ast.Module, nodes: Nodes) -> bool:
        node = nodes.get(number)
        name, first = _filled(node) if node is not None else ("", None)
        if first is None:
            return False
        _Elements(name).visit(tree)
        return put(tree, number, [ast.Assign([ast.Name(name, ast.Store())], copy.deepcopy(first))])

    return changed(program, change)


class _Elements(ast.NodeTransformer):
    """Replaces `x[any number]` by `x`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        whole = isinstance(node.value, ast.Name) and node.value.id == self.name
        numbered = isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int)
        return node.value if whole and numbered and isinstance(node.ctx, ast.Load) else node
