"""Classes become functions: attributes that are set once become variables, methods without `self` stand alone."""

from __future__ import annotations

import ast
import builtins
import copy
from collections.abc import Iterator

from torchsleuth.search.minify.contract import Edit
from torchsleuth.search.minify.python.functions import CALLED, Function, functions_of
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


def unmake_classes(program: Program) -> Iterator[Edit[Program]]:
    """A class as functions of its own name or that of its methods; its attributes as variables before it."""
    for node in ast.walk(program.tree):
        number = (number_of(node),)
        if isinstance(node, ast.ClassDef):
            if node.keywords:
                yield Edit(f"{node.name} as a plain class", _plain_class, number)
            yield Edit(f"variables for what {node.name} keeps", _attributes_out, number)
            yield Edit(f"functions for {node.name}", _methods_out, number)
            for base in node.bases:
                if isinstance(base, ast.Name):
                    yield Edit(f"{node.name} into {base.id}", _merged, (*number, base.id))
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _new(node.value):
            yield Edit(f"variables for what {node.targets[0].id} keeps", _held_out, number)


@change_of(nodes=1)
def _plain_class(tree: ast.Module, made: ast.ClassDef) -> bool:
    """A class without what stands beside its bases, and without what its bases do with that."""
    made.keywords = []
    for owner, _, body in statement_lists(tree):
        if isinstance(owner, ast.ClassDef):
            body[:] = [each for each in body if getattr(each, "name", "") != "__init_subclass__"]
    return True


def constant_attributes(program: Program) -> Iterator[Edit[Program]]:
    """An attribute that a class or a call gives a constant value, as that value wherever it is read."""
    values: dict[str, set[str]] = {}
    for node in ast.walk(program.tree):
        if isinstance(node, ast.AnnAssign):
            name = getattr(node.target, "id", "")
        elif isinstance(node, ast.keyword):
            name = node.arg or ""
        elif isinstance(node, ast.Assign):
            name = getattr(node.targets[0], "attr", "") or getattr(node.targets[0], "id", "")
        else:
            continue
        if name and isinstance(node.value, ast.Constant):
            values.setdefault(name, set()).add(ast.unparse(node.value))
    for name, found in values.items():
        for value in sorted(found):
            yield Edit(f"{value} for .{name}", _constant_attribute, (name, value))


@change_of(nodes=0)
def _constant_attribute(tree: ast.Module, name: str, value: str) -> bool:
    before = ast.dump(tree)
    constant = ast.parse(value, mode="eval").body

    def known(node: ast.AST) -> ast.AST:
        read = isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load)
        return copy.deepcopy(constant) if read else node

    replace_each(tree, known)
    return ast.dump(tree) != before


# -- attributes as variables


@change_of(nodes=1)
def _attributes_out(tree: ast.Module, made: ast.ClassDef) -> bool:
    """`self.x = value` of `__init__` as `x = value` before the class, and every `.x` as `x`."""
    start = next((f for f in made.body if getattr(f, "name", "") == "__init__"), None)
    if not isinstance(start, Function):
        return False
    taken = {name.id for name in names_in(tree)}
    moved: list[ast.stmt] = []
    for statement in list(start.body):
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if isinstance(target, ast.Attribute) and target.attr not in taken:
            start.body.remove(statement)
            value = statement.value  # type: ignore[attr-defined]
            moved.append(ast.Assign([ast.Name(target.attr, ast.Store())], value))
            _attribute_as_name(tree, target.attr, target.attr)
    return bool(moved) and put(tree, made, [*moved, made])


@change_of(nodes=1)
def _held_out(tree: ast.Module, made: ast.Assign) -> bool:
    """What an object is given after it was made, as variables; every `.x` as `x`."""
    if not isinstance(made.targets[0], ast.Name):
        return False
    moved = False
    for _, _, body in list(statement_lists(tree)):
        for statement in list(body):
            name, value = _given(statement, made.targets[0].id)
            taken = {each.id for each in names_in(tree)} | set(dir(builtins))
            itself = value is not None and is_name(value, name)
            if value is None or (name in taken and not itself):
                continue
            place = body.index(statement)
            body[place : place + 1] = [] if itself else [ast.Assign([ast.Name(name, ast.Store())], value)]
            _attribute_as_name(tree, name, name)
            moved = True
    return moved


def _attribute_as_name(tree: ast.AST, attribute: str, name: str) -> None:
    """A plain name in the place of an attribute, of whatever object."""

    def plain(node: ast.AST) -> ast.AST:
        found = isinstance(node, ast.Attribute) and node.attr == attribute
        return ast.Name(name, node.ctx) if found else node  # type: ignore[attr-defined]

    replace_each(tree, plain)


def _given(statement: ast.stmt, variable: str) -> tuple[str, ast.expr | None]:
    """The attribute that a statement gives to the object, and its value."""
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if isinstance(target, ast.Attribute) and isinstance(statement, ast.Assign):
        return (target.attr, statement.value) if is_name(target.value, variable) else ("", None)
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return "", None
    parts = [call.func.value, *call.args] if call.func.attr == "register_buffer" else call.args
    if call.func.attr not in ("register_buffer", "__setattr__") or len(parts) != 3:
        return "", None
    owner, name, value = parts
    known = isinstance(name, ast.Constant) and is_name(owner, variable)
    return (str(name.value), value) if known else ("", None)  # type: ignore[attr-defined]


# -- methods as functions


@change_of(nodes=1)
def _methods_out(tree: ast.Module, made: ast.ClassDef) -> bool:
    """The methods as functions, where none needs its object; a call of an instance as a call of that function."""
    methods = [each for each in made.body if isinstance(each, Function)]
    functions = [f for f in methods if f.name != "__init__"]
    names = {f.name for f in functions}
    if len(methods) != len(made.body) or not all(_stands_alone(f, names) for f in functions):
        return False
    _without_start(tree, made.name)
    taken = {f.name for f in functions_of(tree) if f not in methods}
    taken |= {name.id for name in names_in(tree, ast.Store)}
    for function in functions:
        if function.args.args:
            del function.args.args[0]
        method = function.name
        function.name = made.name.lower() if method in taken or method == "__call__" else method
        _attribute_as_name(tree, method, function.name)
        if method in CALLED:
            _in_place_of_instances(tree, made.name, ast.Name(function.name, ast.Load()))
    # Nothing is asked of an object any more.
    _in_place_of_instances(tree, made.name, ast.Constant(None))
    return bool(functions) and put(tree, made, functions)


def _stands_alone(function: Function, methods: set[str]) -> bool:
    """Whether a method makes no use of the object it belongs to, but for the other methods."""
    if not function.args.args or function.decorator_list:
        return False
    if function.name.startswith("__") and function.name != "__call__":
        return False
    own = function.args.args[0].arg
    inside = [n for s in function.body for n in ast.walk(s)]
    through = {id(n.value) for n in inside if isinstance(n, ast.Attribute) and n.attr in methods}
    return not any(
        isinstance(n, ast.Name) and n.id in (own, "super") and id(n) not in through for n in inside
    )


def _without_start(tree: ast.Module, owner: str) -> None:
    """Leaves out `Base.__init__(x)` where x was made by `Owner.__new__(Owner)`."""
    made = {
        n.targets[0].id
        for n in ast.walk(tree)
        if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name) and _new(n.value) == owner
    }
    for _, _, body in statement_lists(tree):
        body[:] = [each for each in body if _started(each) not in made]


def _started(statement: ast.stmt) -> str:
    call = statement.value if isinstance(statement, ast.Expr) else None
    starts = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.args
    first = call.args[0] if starts and call.func.attr == "__init__" else None  # type: ignore[union-attr]
    return first.id if isinstance(first, ast.Name) else ""


def _in_place_of_instances(tree: ast.AST, owner: str, new: ast.expr) -> None:
    def other(node: ast.AST) -> ast.AST:
        makes = isinstance(node, ast.Call) and (is_name(node.func, owner) or _new(node) == owner)
        return copy.deepcopy(new) if makes else node

    replace_each(tree, other)


def _new(value: ast.AST) -> str | None:
    """The class of which `C.__new__(C)` makes an object."""
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return None
    owner = value.func.value if value.func.attr == "__new__" else None
    return owner.id if isinstance(owner, ast.Name) else None


@change_of(nodes=1)
def _merged(tree: ast.Module, made: ast.ClassDef, base: str) -> bool:
    """A class takes over what its base class in the program has."""
    above = next((n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == base), None)
    if above is None or above is made:
        return False
    own = {getattr(each, "name", None) for each in made.body}
    made.body[:0] = [each for each in above.body if getattr(each, "name", base) not in own]
    made.bases = above.bases
    put(tree, above, [])
    return True
