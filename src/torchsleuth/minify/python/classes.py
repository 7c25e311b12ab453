"""Classes become functions: attributes that are set once become variables, methods without `self` stand alone."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

from torchsleuth.minify.python.callees import Function
from torchsleuth.minify.python.functions import functions_of
from torchsleuth.minify.python.program import Nodes, Program, changed, number_of, put
from torchsleuth.minify.search.contract import Edit

_CALLED = ("forward", "__call__")


def unmake_classes(program: Program) -> Iterator[Edit[Program]]:
    """A class as functions of its own name or that of its methods; its attributes as variables before it."""
    for node in ast.walk(program.tree):
        if isinstance(node, ast.ClassDef):
            yield Edit(f"variables for what {node.name} keeps", _attributes_out, (number_of(node),))
            yield Edit(f"functions for {node.name}", _methods_out, (number_of(node),))
            for base in node.bases:
                if isinstance(base, ast.Name):
                    yield Edit(f"{node.name} into {base.id}", _merged, (number_of(node), base.id))


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
        if len(methods) != len(made.body) or not all(_stands_alone(f) for f in methods):
            return False
        functions = [f for f in methods if f.name != "__init__"]
        taken = {f.name for f in functions_of(tree) if f not in methods}
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


def _stands_alone(function: Function) -> bool:
    """Whether a method makes no use of the object it belongs to."""
    if not function.args.args:
        return False
    own = function.args.args[0].arg
    plain = not function.decorator_list and not (
        function.name.startswith("__") and function.name not in KNOWN
    )
    return plain and not any(
        (isinstance(n, ast.Name) and n.id in (own, "super")) for s in function.body for n in ast.walk(s)
    )


KNOWN = ("__init__", "__call__")


class _Methods(ast.NodeTransformer):
    """Replaces `object.method` by the function, and, for what a call of an instance runs, `Class(...)` as well."""

    def __init__(self, owner: str, method: str, function: str, called: bool) -> None:
        self.owner, self.method, self.function, self.called = owner, method, function, called

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        return ast.Name(self.function, node.ctx) if node.attr == self.method else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        instance = isinstance(node.func, ast.Name) and node.func.id == self.owner
        return ast.Name(self.function, ast.Load()) if self.called and instance else node


class _Instances(ast.NodeTransformer):
    """Replaces what is left of `Class(...)`: nothing is asked of the object any more."""

    def __init__(self, owner: str) -> None:
        self.owner = owner

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        instance = isinstance(node.func, ast.Name) and node.func.id == self.owner
        return ast.Constant(None) if instance else node


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
