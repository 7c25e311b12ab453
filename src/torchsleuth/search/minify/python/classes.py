"""Classes become functions: attributes that are set once become variables, methods without `self` stand alone."""

from __future__ import annotations

import ast
import builtins
import copy
from collections.abc import Iterator

from torchsleuth.search.minify.contract import Edit
from torchsleuth.search.minify.python.functions import Function, functions_of
from torchsleuth.search.minify.python.program import Nodes, Program, changed, number_of, put, statement_lists

_CALLED = ("forward", "__call__")


def unmake_classes(program: Program) -> Iterator[Edit[Program]]:
    """A class as functions of its own name or that of its methods; its attributes as variables before it."""
    for node in ast.walk(program.tree):
        if isinstance(node, ast.ClassDef):
            if node.keywords:
                yield Edit(f"{node.name} as a plain class", _plain_class, (number_of(node),))
            yield Edit(f"variables for what {node.name} keeps", _attributes_out, (number_of(node),))
            yield Edit(f"functions for {node.name}", _methods_out, (number_of(node),))
            for base in node.bases:
                if isinstance(base, ast.Name):
                    yield Edit(f"{node.name} into {base.id}", _merged, (number_of(node), base.id))
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _new(node.value):
            what = f"variables for what {node.targets[0].id} keeps"
            yield Edit(what, _held_out, (number_of(node),))


def _plain_class(program: Program, number: int) -> Program | None:
    """A class without what stands beside its bases, and without what its bases do with that."""

    def change(tree: ast.Module, nodes: Nodes) -> bool:
        if number not in nodes:
            return False
        nodes[number].keywords = []
        for owner, _, body in statement_lists(tree):
            if isinstance(owner, ast.ClassDef):
                body[:] = [each for each in body if getattr(each, "name", "") != "__init_subclass__"]
        return True

    return changed(program, change)


def constant_attributes(program: Program) -> Iterator[Edit[Program]]:
    """An attribute that a class or a call gives a constant value, as that value wherever it is read."""
    values: dict[str, set[str]] = {}
    for node in ast.walk(program.tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            _note(values, node.target.id, node.value)
        elif isinstance(node, ast.keyword) and node.arg is not None:
            _note(values, node.arg, node.value)
        elif isinstance(node, ast.Assign):
            target = node.targets[0]
            name = getattr(target, "attr", None) or getattr(target, "id", "")
            _note(values, str(name), node.value)
    for name, found in values.items():
        for value in sorted(found):
            yield Edit(f"{value} for .{name}", _constant_attribute, (name, value))


def _note(values: dict[str, set[str]], name: str, value: ast.expr | None) -> None:
    if isinstance(value, ast.Constant):
        values.setdefault(name, set()).add(ast.unparse(value))


def _constant_attribute(program: Program, name: str, value: str) -> Program | None:
    def change(tree: ast.Module, nodes: Nodes) -> bool:
        constant = ast.parse(value, mode="eval").body
        before = ast.dump(tree)
        _Constants(name, constant).visit(tree)
        return ast.dump(tree) != before

    return changed(program, change)


class _Constants(ast.NodeTransformer):
    """Replaces reads of an attribute by a constant."""

    def __init__(self, name: str, constant: ast.expr) -> None:
        self.name, self.constant = name, constant

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        read = node.attr == self.name and isinstance(node.ctx, ast.Load)
        return copy.deepcopy(self.constant) if read else node


def _attributes_out(program: Program, number: int) -> Program | None:
    """`self.x = value` of `__init__` as `x = value` before the class, and every `.x` as `x`."""

    def change(tree: ast.Module, nodes: Nodes) -> bool:
        made = nodes.get(number)
        start = next((f for f in getattr(made, "body", ()) if getattr(f, "name", "") == "__init__"), None)
        if made is None or start is None:
            return False
        taken = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
        moved: list[ast.stmt] = []
        for statement in list(start.body):
            target = statement.targets[0] if isinstance(statement, ast.Assign) else None
            if isinstance(target, ast.Attribute) and target.attr not in taken:
                start.body.remove(statement)
                moved.append(ast.Assign([ast.Name(target.attr, ast.Store())], statement.value))
                _Attributes(target.attr).visit(tree)
        return bool(moved) and put(tree, number, [*moved, made])

    return changed(program, change)


def _new(value: ast.AST) -> str | None:
    """The class of which `C.__new__(C)` makes an object."""
    made = (
        isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "__new__"
    )
    owner = value.func.value if made else None  # type: ignore[attr-defined]
    return owner.id if isinstance(owner, ast.Name) else None


def _held_out(program: Program, number: int) -> Program | None:
    """What an object is given after it was made, as variables; every `.x` as `x`."""

    def change(tree: ast.Module, nodes: Nodes) -> bool:
        made = nodes.get(number)
        if made is None or not isinstance(made.targets[0], ast.Name):
            return False
        moved = False
        for _, _, body in list(statement_lists(tree)):
            for statement in list(body):
                name, value = _given(statement, made.targets[0].id)
                taken = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} | set(dir(builtins))
                itself = isinstance(value, ast.Name) and value.id == name
                if value is None or (name in taken and not itself):
                    continue
                place = body.index(statement)
                body[place : place + 1] = [] if itself else [ast.Assign([ast.Name(name, ast.Store())], value)]
                _Attributes(name).visit(tree)
                moved = True
        return moved

    return changed(program, change)


def _given(statement: ast.stmt, variable: str) -> tuple[str, ast.expr | None]:
    """The attribute that a statement gives to the object, and its value."""
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if isinstance(target, ast.Attribute) and isinstance(statement, ast.Assign):
        return (target.attr, statement.value) if _is_name(target.value, variable) else ("", None)
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return "", None
    parts = [call.func.value, *call.args] if call.func.attr == "register_buffer" else call.args
    if call.func.attr not in ("register_buffer", "__setattr__") or len(parts) != 3:
        return "", None
    owner, name, value = parts
    known = isinstance(name, ast.Constant) and _is_name(owner, variable)
    return (str(name.value), value) if known else ("", None)  # type: ignore[attr-defined]


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


class _Attributes(ast.NodeTransformer):
    """Replaces an attribute of whatever object by a plain name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        return ast.Name(self.name, node.ctx) if node.attr == self.name else node


def _methods_out(program: Program, number: int) -> Program | None:
    """The methods as functions, where none needs its object; a call of an instance as a call of that function."""

    def change(tree: ast.Module, nodes: Nodes) -> bool:
        made = nodes.get(number)
        if made is None:
            return False
        methods = [each for each in made.body if isinstance(each, Function)]
        functions = [f for f in methods if f.name != "__init__"]
        names = {f.name for f in functions}
        if len(methods) != len(made.body) or not all(_stands_alone(f, names) for f in functions):
            return False
        _without_start(tree, made.name)
        taken = {f.name for f in functions_of(tree) if f not in methods}
        taken |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        for function in functions:
            if function.args.args:
                del function.args.args[0]
            called = function.name in _CALLED
            name = (
                made.name.lower() if function.name in taken or function.name == "__call__" else function.name
            )
            _Methods(made.name, function.name, name, called).visit(tree)
            function.name = name
        _Instances(made.name).visit(tree)
        return bool(functions) and put(tree, number, functions)

    return changed(program, change)


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


class _Methods(ast.NodeTransformer):
    """Replaces `object.method` by the function, and, for what a call of an instance runs, `Class(...)` as well."""

    def __init__(self, owner: str, method: str, function: str, called: bool) -> None:
        self.owner, self.method, self.function, self.called = owner, method, function, called

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        return ast.Name(self.function, node.ctx) if node.attr == self.method else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        return ast.Name(self.function, ast.Load()) if self.called and _makes(node, self.owner) else node


class _Instances(ast.NodeTransformer):
    """Replaces what is left of `Class(...)`: nothing is asked of the object any more."""

    def __init__(self, owner: str) -> None:
        self.owner = owner

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        return ast.Constant(None) if _makes(node, self.owner) else node


def _makes(call: ast.Call, owner: str) -> bool:
    """Whether a call makes an object of that class."""
    return _is_name(call.func, owner) or _new(call) == owner


def _merged(program: Program, number: int, base: str) -> Program | None:
    """A class takes over what its base class in the program has."""

    def change(tree: ast.Module, nodes: Nodes) -> bool:
        made = nodes.get(number)
        above = next((n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == base), None)
        if made is None or above is None or above is made:
            return False
        own = {getattr(each, "name", None) for each in made.body}
        made.body[:0] = [each for each in above.body if getattr(each, "name", base) not in own]
        made.bases = above.bases
        put(tree, number_of(above), [])
        return True

    return changed(program, change)
