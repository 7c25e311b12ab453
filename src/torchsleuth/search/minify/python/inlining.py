"""Bodies move to where they are called, values to where they are used, and callers give way to what they call."""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Iterator

from torchsleuth.search.minify.python.callees import Callees, Function
from torchsleuth.search.minify.python.functions import default_of, functions_of
from torchsleuth.search.minify.python.program import Nodes, Program, changed, number_of, put, statement_lists
from torchsleuth.search.minify.search.contract import Edit

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
# What may replace a parameter without being computed first.
_PLAIN = (ast.Name, ast.Constant)
# A line that holds several steps must still be read at a glance.
LONGEST = 72


def leave_out_callers(program: Program) -> Iterator[Edit[Program]]:
    """What a function or class uses in the place of itself: the inner module for the whole model."""
    made = [n for n in ast.walk(program.tree) if isinstance(n, (*_FUNCTIONS, ast.ClassDef))]
    names = {each.name for each in made}
    for outer in made:
        used = {n.id for n in ast.walk(outer) if isinstance(n, ast.Name)} & (names - {outer.name})
        for inner in sorted(used):
            yield Edit(f"{inner} instead of {outer.name}", _instead, (number_of(outer), inner))


def _instead(program: Program, number: int, inner: str) -> Program | None:
    def change(tree: ast.Module, nodes: Nodes) -> bool:
        outer = nodes.get(number)
        if outer is None or not put(tree, number, []):
            return False
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id == outer.name:
                node.id = inner
        return True

    return changed(program, change)


def inline_functions(program: Program) -> Iterator[Edit[Program]]:
    """The body of a function in the place of a statement that calls it; last, a value where it is used."""
    calls = Callees.of(program.tree)
    for function in functions_of(program.tree):
        if _can_be_inlined(function):
            for call, bound in calls.calls_of(function):
                if not bound and isinstance(call.func, ast.Name) and call.func.id == function.name:
                    yield Edit(f"inline {function.name}", _inlined, (number_of(function), number_of(call)))
    for owner, _, body in statement_lists(program.tree):
        if not isinstance(owner, ast.ClassDef):
            for statement, after in itertools.pairwise(body):
                if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                    yield Edit(
                        f"put {statement.targets[0].id} where it is used",
                        _substituted,
                        (number_of(statement), number_of(after)),
                    )


def _can_be_inlined(function: Function) -> bool:
    given = function.args
    inner = list(_own_nodes(function))
    returns = [node for node in inner if isinstance(node, ast.Return)]
    return (
        isinstance(function, ast.FunctionDef)
        and not (given.vararg or given.kwarg or function.decorator_list)
        and all(node is function.body[-1] for node in returns)
        and not any(isinstance(n, (ast.Yield, ast.YieldFrom, ast.Global, ast.Nonlocal)) for n in inner)
    )


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """What stands in a scope itself, not in functions or classes inside it."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, _SCOPES):
            yield from _own_nodes(child)


def _inlined(program: Program, number: int, call_number: int) -> Program | None:
    def change(tree: ast.Module, nodes: Nodes) -> bool:
        function, call = nodes.get(number), nodes.get(call_number)
        place = None if call is None else _place_of(tree, call)
        if function is None or call is None or place is None or not _can_be_inlined(function):
            return False
        body, at, scope = place
        if any(node is body[at] for node in ast.walk(function)):
            return False
        values = _bound_values(function, call)
        if values is None:
            return False
        moved = copy.deepcopy(function)
        _rename(moved, _names(scope))
        parameters = [*moved.args.posonlyargs, *moved.args.args, *moved.args.kwonlyargs]
        stored = {
            n.id
            for s in moved.body
            for n in ast.walk(s)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
        set_first: list[ast.stmt] = []
        for parameter, value in zip(parameters, values):
            if isinstance(value, _PLAIN) and parameter.arg not in stored:
                _replace_name(moved, parameter.arg, value)
            else:
                set_first.append(ast.Assign([ast.Name(parameter.arg, ast.Store())], copy.deepcopy(value)))
        last = moved.body[-1]
        result: ast.expr = ast.Constant(None)
        if isinstance(last, ast.Return):
            result = last.value or result
            moved.body.pop()
        alone = isinstance(body[at], ast.Expr) and body[at].value is call  # type: ignore[attr-defined]
        put(tree, call_number, [result])
        if alone and isinstance(result, ast.Constant):
            del body[at]
        body[at:at] = [*set_first, *moved.body]
        if not any(isinstance(n, ast.Name) and n.id == function.name for n in ast.walk(tree)):
            put(tree, number, [])
        return True

    return changed(program, change)


def _place_of(tree: ast.Module, call: ast.Call) -> tuple[list[ast.stmt], int, ast.AST] | None:
    """The list of statements in which a call stands, its place there, and the scope; None inside of a block's head."""
    found: tuple[list[ast.stmt], int, ast.AST] | None = None
    scopes: list[ast.AST] = [tree, *(node for node in ast.walk(tree) if isinstance(node, _SCOPES))]
    for scope in scopes:
        for _, _, body in statement_lists(scope):
            for at, statement in enumerate(body):
                simple = isinstance(statement, (ast.Expr, ast.Assign, ast.AugAssign, ast.Return))
                if simple and any(inner is call for inner in ast.walk(statement)):
                    found = body, at, scope
    return found


def _bound_values(function: Function, call: ast.Call) -> list[ast.expr] | None:
    """What each parameter is in a call, in the order of the definition; None where that cannot be read off."""
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    if any(isinstance(each, ast.Starred) for each in call.args) or len(call.args) > len(positional):
        return None
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    values: list[ast.expr] = []
    for place, parameter in enumerate([*positional, *given.kwonlyargs]):
        told = [call.args[place]] if place < len(call.args) else []
        told = told or [named[parameter.arg]] if parameter.arg in named else told
        told = told or default_of(given, parameter)
        if not told:
            return None
        values.append(told[0])
    return values


def _names(scope: ast.AST) -> set[str]:
    """The names that mean something in a scope itself."""
    found = list(_own_nodes(scope))
    return {n.id for n in found if isinstance(n, ast.Name)} | {n.arg for n in found if isinstance(n, ast.arg)}


def _rename(function: Function, taken: set[str]) -> None:
    """Gives the function's own variables other names where those are taken."""
    own = {n.arg for n in ast.walk(function.args) if isinstance(n, ast.arg)}
    own |= {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    for name in sorted(own & taken):
        new = f"{name}_{function.name.strip('_')}"
        if new in taken | own:
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and node.id == name:
                node.id = new
            elif isinstance(node, ast.arg) and node.arg == name:
                node.arg = new


def _replace_name(tree: ast.AST, name: str, value: ast.expr) -> None:
    for node in ast.walk(tree):
        for field, child in ast.iter_fields(node):
            if isinstance(child, ast.Name) and child.id == name:
                setattr(node, field, copy.deepcopy(value))
            elif isinstance(child, list):
                child[:] = [
                    copy.deepcopy(value) if isinstance(item, ast.Name) and item.id == name else item
                    for item in child
                ]


def _substituted(program: Program, number: int, after: int) -> Program | None:
    def change(tree: ast.Module, nodes: Nodes) -> bool:
        statement, user = nodes.get(number), nodes.get(after)
        if statement is None or user is None or not isinstance(statement.targets[0], ast.Name):
            return False
        name = statement.targets[0].id
        uses = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == name]
        inside = [n for n in ast.walk(user) if isinstance(n, ast.Name) and n.id == name]
        stored = [n for n in uses if not isinstance(n.ctx, ast.Load)]
        if len(stored) == 1 and isinstance(statement.value, _PLAIN):  # another name for the same
            _replace_name(tree, name, statement.value)
            return put(tree, number, [])
        simple = isinstance(user, (ast.Expr, ast.Assign, ast.Return))
        if not simple or len(uses) != 2 or len(inside) != 1 or len(stored) != 1:
            return False
        _replace_name(user, name, statement.value)
        return put(tree, number, []) and len(ast.unparse(user)) <= LONGEST

    return changed(program, change)
