"""Less of definitions: parameters go from a function and from its calls.

Decorators, defaults, annotations, docstrings and base classes go one by one.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import Any

from torchsleuth.search.minify.python.callees import Callees, Function
from torchsleuth.search.minify.python.program import Nodes, Program, changed, number_of, put, statement_lists
from torchsleuth.search.minify.search.contract import Edit


def functions_of(tree: ast.AST) -> list[Any]:
    return [node for node in ast.walk(tree) if isinstance(node, Function)]


def drop_trimmings(program: Program) -> Iterator[Edit[Program]]:
    """Annotations, docstrings, decorators, defaults, base classes: what a definition may do without."""
    yield Edit("annotations and docstrings", _plain)
    for node in ast.walk(program.tree):
        for field in ("decorator_list", "bases", "keywords"):
            if field == "keywords" and not isinstance(node, ast.ClassDef):
                continue
            for part in getattr(node, field, ()):
                yield Edit(f"drop {ast.unparse(part)}", _without, (number_of(part),))
        if isinstance(node, ast.arguments):
            for default in [*node.defaults, *filter(None, node.kw_defaults)]:
                yield Edit(
                    f"drop the default {ast.unparse(default)}", _without_default, (number_of(default),)
                )
        if isinstance(node, (ast.Import, ast.ImportFrom)) and len(node.names) > 1:
            for alias in node.names:
                yield Edit(f"do not import {alias.name}", _without, (number_of(alias),))


def _plain(program: Program) -> Program | None:
    def change(tree: ast.Module, nodes: Nodes) -> bool:
        for node in ast.walk(tree):
            if isinstance(node, ast.arg):
                node.annotation = None
            elif isinstance(node, Function):
                node.returns = None
        for owner, name, body in statement_lists(tree):
            # The fields of a dataclass are annotations, and mean something.
            if not isinstance(owner, ast.ClassDef):
                body[:] = [_without_annotation(each) for each in body]
            if name == "body" and body and _is_text(body[0]):
                del body[0]
        return True

    return changed(program, change)


def _without_annotation(statement: ast.stmt) -> ast.stmt:
    if not isinstance(statement, ast.AnnAssign) or statement.value is None:
        return statement
    return ast.copy_location(ast.Assign([statement.target], statement.value), statement)


def _is_text(statement: ast.stmt) -> bool:
    value = getattr(statement, "value", None)
    return (
        isinstance(statement, ast.Expr) and isinstance(value, ast.Constant) and isinstance(value.value, str)
    )


def _without(program: Program, number: int) -> Program | None:
    return changed(program, lambda tree, nodes: number in nodes and put(tree, number, []))


def _without_default(program: Program, number: int) -> Program | None:
    def change(tree: ast.Module, nodes: Nodes) -> bool:
        for node in ast.walk(tree):
            if isinstance(node, ast.arguments):
                for place, default in enumerate(node.kw_defaults):
                    if default is not None and number_of(default) == number:
                        node.kw_defaults[place] = None
                        return True
        return number in nodes and put(tree, number, [])

    return changed(program, change)


# -- parameters


def drop_parameters(program: Program) -> Iterator[Edit[Program]]:
    """A parameter with what calls pass for it; inside, where it is used, it becomes what the first call passed."""
    methods = {id(method) for named in Callees.of(program.tree).methods.values() for method in named}
    for function in functions_of(program.tree):
        given = function.args
        own = given.args[:1] if id(function) in methods else []
        for parameter in [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]:
            if parameter is not None and parameter not in own:
                what = f"{parameter.arg} of {function.name}"
                yield Edit(
                    f"drop {what}", _without_parameter, (number_of(function), number_of(parameter), False)
                )
                yield Edit(
                    f"set {what}", _without_parameter, (number_of(function), number_of(parameter), True)
                )


def _without_parameter(program: Program, number: int, parameter: int, inside: bool) -> Program | None:
    def change(tree: ast.Module, nodes: Nodes) -> bool:
        function, gone = nodes.get(number), nodes.get(parameter)
        if function is None or gone is None:
            return False
        given = function.args
        passed = list(_passed(tree, function, gone))
        values = [value for _, value in passed if value is not None] + default_of(given, gone)
        if inside and not values:
            return False
        if not inside and any(isinstance(n, ast.Name) and n.id == gone.arg for n in ast.walk(function)):
            return False  # it would become what else has that name, which nobody can see at the call
        for call, value in passed:
            if value is not None:
                _take(call, value)
        _forget(given, gone)
        if inside:
            value = copy.deepcopy(values[0])
            function.body.insert(0, ast.Assign([ast.Name(gone.arg, ast.Store())], value))
        return True

    return changed(program, change)


def _passed(
    tree: ast.Module, function: Function, parameter: ast.arg
) -> Iterator[tuple[ast.Call, ast.expr | None]]:
    """The calls of a function, and what each passes for a parameter."""
    positional = [*function.args.posonlyargs, *function.args.args]
    for call, bound in Callees.of(tree).calls_of(function):
        named = {keyword.arg: keyword.value for keyword in call.keywords}
        place = positional.index(parameter) - bound if parameter in positional else -1
        starred = any(isinstance(argument, ast.Starred) for argument in call.args)
        if 0 <= place < len(call.args) and not starred:
            yield call, call.args[place]
        else:
            yield call, named.get(parameter.arg)


def _take(call: ast.Call, value: ast.expr) -> None:
    call.args = [each for each in call.args if each is not value]
    call.keywords = [each for each in call.keywords if each.value is not value]


def default_of(given: ast.arguments, parameter: ast.arg) -> list[ast.expr]:
    """The default of a parameter, if it has one."""
    positional = [*given.posonlyargs, *given.args]
    if parameter in positional:
        place = positional.index(parameter) - len(positional) + len(given.defaults)
        return [given.defaults[place]] if place >= 0 else []
    if parameter in given.kwonlyargs:
        return list(filter(None, [given.kw_defaults[given.kwonlyargs.index(parameter)]]))
    return []


def _forget(given: ast.arguments, parameter: ast.arg) -> None:
    for default in default_of(given, parameter):
        given.defaults = [each for each in given.defaults if each is not default]
    if parameter in given.kwonlyargs:
        del given.kw_defaults[given.kwonlyargs.index(parameter)]
    for name in ("posonlyargs", "args", "kwonlyargs"):
        setattr(given, name, [each for each in getattr(given, name) if each is not parameter])
    given.vararg = None if given.vararg is parameter else given.vararg
    given.kwarg = None if given.kwarg is parameter else given.kwarg
