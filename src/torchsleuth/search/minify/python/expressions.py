"""Smaller expressions: a part in the place of the whole, fewer arguments and elements, plainer constants."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchsleuth.search.minify.contract import Edit, NumberEdit
from torchsleuth.search.minify.python.program import (
    Program,
    change_of,
    names_in,
    number_of,
    put,
    without_node,
)

# Sizes below this say that a dimension is special.
LEAST_SIZE = 2
# A text that is longer has a meaning to a person only.
LONG_TEXT = 12
# From so many nodes on, an expression is large.
LARGE = 12
MOST_NAMES = 3
_RANDOM = ("torch.randn", "torch.rand")
_LEAVES = (ast.Name, ast.Constant)


def fewer_arguments(program: Program) -> Iterator[Edit[Program]]:
    """A call without one of its arguments, a display without one of its elements, a value that nobody keeps."""
    for node in ast.walk(program.tree):
        parts: list[ast.expr | ast.keyword] = []
        if isinstance(node, ast.Call):
            parts = [*node.keywords, *reversed(node.args)]
        elif isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            parts = list(reversed(node.elts))
        elif isinstance(node, ast.Dict):
            for place in reversed(range(len(node.values))):
                yield Edit("drop an entry", _without_entry, (number_of(node), place))
        elif isinstance(node, (ast.Return, ast.Yield)) and node.value is not None:
            yield Edit("give nothing back", _nothing_back, (number_of(node),))
        elif isinstance(node, ast.Assign):
            yield Edit(f"keep no {_short(node.targets[0])}", _not_kept, (number_of(node),))
        elif isinstance(node, ast.With):
            named = [item.optional_vars for item in node.items if item.optional_vars is not None]
            parts += named
        for part in parts:
            yield Edit(f"drop {ast.unparse(part)}", without_node, (number_of(part),))


@change_of(nodes=1)
def _without_entry(tree: ast.Module, node: ast.Dict, place: int) -> bool:
    if place >= len(node.values):
        return False
    del node.keys[place], node.values[place]
    return True


@change_of(nodes=1)
def _nothing_back(tree: ast.Module, node: ast.Return | ast.Yield) -> bool:
    node.value = None
    return True


@change_of(nodes=1)
def _not_kept(tree: ast.Module, node: ast.Assign) -> bool:
    """The value of an assignment as a statement of its own."""
    return put(tree, node, [ast.Expr(node.value)])


def smaller_expressions(program: Program) -> Iterator[Edit[Program]]:
    """One of its parts in the place of an expression, or else a constant; outer ones first."""
    left = _no_values(program.tree)
    for node in ast.walk(program.tree):
        if isinstance(node, ast.expr) and not isinstance(node, _LEAVES) and _is_read(node):
            if id(node) in left:
                continue
            number = number_of(node)
            for part in [*_names_inside(node), *_parts(node)]:
                if _is_read(part) and id(part) not in left:
                    yield Edit(f"{_short(part)} for {_short(node)}", _replaced, (number, number_of(part)))
            if isinstance(node, (ast.Call, ast.BinOp, ast.Compare, ast.BoolOp, ast.IfExp, ast.Subscript)):
                yield Edit(f"1 for {_short(node)}", _constant, (number, 1))


def _names_inside(node: ast.expr) -> list[ast.expr]:
    """Of a large expression, the variables it is made from: most often one of them will do."""
    names: dict[str, ast.expr] = {name.id: name for name in names_in(node)}
    return list(names.values())[:MOST_NAMES] if len(list(ast.walk(node))) > LARGE else []


def _no_values(tree: ast.AST) -> set[int]:
    """Expressions that make no sense elsewhere, nor their parts: modules, what a module holds, what is called."""
    modules = {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    found = {id(name) for name in names_in(tree) if name.id in modules}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            found.add(id(node.func))
        root = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(node, ast.Attribute) and isinstance(root, ast.Name) and root.id in modules:
            found.add(id(node))
    return found


def _parts(node: ast.AST) -> list[ast.expr]:
    """The expressions right below one; what only carries another is looked through."""
    found: list[ast.expr] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Attribute) and isinstance(node, ast.Call) and child is node.func:
            found.append(child.value)  # x for x.sin()
        elif isinstance(child, (ast.Starred, ast.Slice, ast.FormattedValue, ast.JoinedStr)):
            found += _parts(child)
        elif isinstance(child, ast.expr):
            found.append(child)
        elif isinstance(child, (ast.keyword, ast.comprehension)):
            found += _parts(child)
    return found


def _is_read(node: ast.expr) -> bool:
    return isinstance(getattr(node, "ctx", None) or ast.Load(), ast.Load) and not isinstance(
        node, (ast.Starred, ast.Slice, ast.FormattedValue)
    )


def _short(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 30 else f"{text[:29]}…"


@change_of(nodes=2)
def _replaced(tree: ast.Module, node: ast.expr, part: ast.expr) -> bool:
    return any(each is part for each in ast.walk(node)) and put(tree, node, [part])


@change_of(nodes=1)
def _constant(tree: ast.Module, node: ast.expr, value: float | str) -> bool:
    return put(tree, node, [ast.Constant(value)])


# -- tensors


def plainer_tensors(program: Program) -> Iterator[Edit[Program]]:
    """A tensor that is written out, or random, as one of its shape: what matters is mostly that."""
    for node in ast.walk(program.tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in _RANDOM:
            yield Edit("ones instead of random numbers", _of_ones, (number_of(node),))
        shape = _shape_written(node)
        if shape is not None:
            yield Edit(f"a tensor of shape {shape}", _of_shape, (number_of(node), shape))


def _shape_written(node: ast.AST) -> tuple[int, ...] | None:
    """The shape of `torch.tensor([...])`, numbers all of them; None for what is no such call."""
    called = isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.tensor" and node.args
    try:
        values = ast.literal_eval(node.args[0]) if called else None  # type: ignore[attr-defined]
    except ValueError:
        return None
    shape: list[int] = []
    while isinstance(values, list):
        shape.append(len(values))
        values = values[0] if values else 0.0
    return tuple(shape) if shape and type(values) in (int, float) else None


@change_of(nodes=1)
def _of_ones(tree: ast.Module, call: ast.Call) -> bool:
    call.func = ast.parse("torch.ones", mode="eval").body
    return True


@change_of(nodes=1)
def _of_shape(tree: ast.Module, call: ast.Call, shape: tuple[int, ...]) -> bool:
    if _shape_written(call) != shape:
        return False
    whole = "." not in ast.unparse(call.args[0])
    # Nought is an index of everything.
    call.func = ast.parse("torch.zeros" if whole else "torch.ones", mode="eval").body
    call.args = [ast.Constant(size) for size in shape]
    if whole and not any(each.arg == "dtype" for each in call.keywords):
        call.keywords.append(ast.keyword("dtype", ast.parse("torch.long", mode="eval").body))
    return True


# -- numbers and texts


def smaller_sizes(program: Program) -> Iterator[Edit[Program] | NumberEdit[Program]]:
    """Each whole number above two, everywhere it stands: sizes that belong together stay equal."""
    numbers = {
        n.value for n in ast.walk(program.tree) if isinstance(n, ast.Constant) and type(n.value) is int
    }
    for value in sorted(numbers, reverse=True):
        if value > LEAST_SIZE:
            yield NumberEdit(f"{value}", LEAST_SIZE, value, _with_number, (value,))


def plainer_constants(program: Program) -> Iterator[Edit[Program] | NumberEdit[Program]]:
    """Each number by itself, from where it stands down to one; floats that are whole, texts that are short."""
    for node in ast.walk(program.tree):
        if not isinstance(node, ast.Constant):
            continue
        number, value = number_of(node), node.value
        if type(value) is int and value > 1:
            yield NumberEdit(f"{value}", 1, value, _with_value, (number,))
        elif type(value) is float and value not in (0.0, 1.0):
            yield Edit(f"1.0 for {value}", _constant, (number, 1.0))
        elif isinstance(value, str) and len(value) > LONG_TEXT:
            yield Edit("a shorter text", _constant, (number, ""))


@change_of(nodes=0)
def _with_number(tree: ast.Module, new: int, value: int) -> bool:
    found = [
        n for n in ast.walk(tree) if isinstance(n, ast.Constant) and type(n.value) is int and n.value == value
    ]
    for node in found:
        node.value = new
    return bool(found)


def _with_value(program: Program, new: int, number: int) -> Program | None:
    return _constant(program, number, new)
