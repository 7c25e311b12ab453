"""Functions with less to them, and fewer of them: which one a call ends up in, as far as the text tells.

Parameters go from a function and from its calls; decorators, defaults, annotations, docstrings and base classes go one
by one. Bodies move to where they are called, values to where they are used, and callers give way to what they call.
"""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Iterator

from torchsleuth.search.minify.contract import Edit
from torchsleuth.search.minify.python.program import (
    Program,
    change_of,
    is_name,
    names_in,
    number_of,
    put,
    replace_each,
    statement_lists,
    without_node,
)

Function = ast.FunctionDef | ast.AsyncFunctionDef
# What a call of an instance is, the first there is.
CALLED = ("forward", "__call__")
# A chain of names that is longer goes in circles.
_DEEP = 8
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
# What may replace a parameter without being computed first.
_PLAIN = (ast.Name, ast.Constant)
# A line that holds several steps must still be read at a glance.
LONGEST = 72


def functions_of(tree: ast.AST) -> list[Function]:
    """The functions and methods of a program, outer ones first."""
    return [node for node in ast.walk(tree) if isinstance(node, Function)]


class Callees:
    """Answers whom the calls of a program reach: `Callees(tree).calls_of(function)`."""

    def __init__(self, tree: ast.AST) -> None:
        self.functions: dict[str, Function] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self.methods: dict[str, list[Function]] = {}
        # Variables that are assigned once.
        self.values: dict[str, ast.expr | None] = {}
        self.calls: list[ast.Call] = []
        inside = {id(f) for c in ast.walk(tree) if isinstance(c, ast.ClassDef) for f in c.body}
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                self.classes[node.name] = node
            elif isinstance(node, Function):
                if id(node) in inside:
                    self.methods.setdefault(node.name, []).append(node)
                else:
                    self.functions[node.name] = node
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                self.values[name] = None if name in self.values else node.value
            elif isinstance(node, ast.Call):
                self.calls.append(node)

    def calls_of(self, function: Function) -> Iterator[tuple[ast.Call, bool]]:
        """The calls that reach a function, and whether they leave out its first parameter."""
        for call in self.calls:
            called, bound = self._callee(call.func)
            if called is function:
                yield call, bound

    def _callee(self, called: ast.expr, deep: int = 0) -> tuple[Function | None, bool]:
        """The function that calling an expression runs, and whether a call does not pass its first parameter."""
        if deep > _DEEP:
            return None, False
        if isinstance(called, ast.Name):
            if called.id in self.functions:
                return self.functions[called.id], False
            if called.id in self.classes:
                return self._method(called.id, ("__init__",)), True
        if isinstance(called, ast.Attribute) and len(self.methods.get(called.attr, ())) == 1:
            method = self.methods[called.attr][0]
            return method, not any(is_name(each, "staticmethod") for each in method.decorator_list)
        return self._of_value(called, deep)

    def _of_value(self, value: ast.expr, deep: int) -> tuple[Function | None, bool]:
        """The function that calling a value runs: an instance, a function, either of them compiled."""
        if deep > _DEEP:
            return None, False
        known = self.values.get(value.id) if isinstance(value, ast.Name) else None
        value = known or value
        if not isinstance(value, ast.Call):
            return (None, False) if known is None else self._callee(value, deep + 1)
        if isinstance(value.func, ast.Name) and value.func.id in self.classes:
            return self._method(value.func.id, CALLED), True
        if value.args and not (isinstance(value.func, ast.Name) and value.func.id in self.functions):
            # torch.compile(f), torch.func.grad(f), torch.compile(model), functools.wraps(f): a call of f in the end.
            found = self._of_value(value.args[0], deep + 1)
            return found if found[0] is not None else self._callee(value.args[0], deep + 1)
        # model.eval(), Model().to(device): still the model.
        owner = value.func.value if isinstance(value.func, ast.Attribute) else None
        return (None, False) if owner is None else self._of_value(owner, deep + 1)

    def _method(self, name: str, wanted: tuple[str, ...]) -> Function | None:
        found = {f.name: f for f in self.classes[name].body if isinstance(f, Function)}
        return next((found[each] for each in wanted if each in found), None)


# -- what a definition may do without


def drop_trimmings(program: Program) -> Iterator[Edit[Program]]:
    """Annotations, docstrings, decorators, defaults, base classes: what a definition may do without."""
    yield Edit("annotations and docstrings", _without_annotations)
    for node in ast.walk(program.tree):
        parts = [*getattr(node, "decorator_list", ()), *getattr(node, "bases", ())]
        if isinstance(node, ast.ClassDef):
            parts += node.keywords
        for part in parts:
            yield Edit(f"drop {ast.unparse(part)}", without_node, (number_of(part),))
        if isinstance(node, ast.arguments):
            for default in [*node.defaults, *filter(None, node.kw_defaults)]:
                what = f"drop the default {ast.unparse(default)}"
                yield Edit(what, _without_default, (number_of(default),))
        if isinstance(node, (ast.Import, ast.ImportFrom)) and len(node.names) > 1:
            for alias in node.names:
                yield Edit(f"do not import {alias.name}", without_node, (number_of(alias),))


@change_of(nodes=0)
def _without_annotations(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, Function):
            node.returns = None
    for owner, name, body in statement_lists(tree):
        # The fields of a dataclass are annotations, and mean something.
        if not isinstance(owner, ast.ClassDef):
            body[:] = [
                ast.copy_location(ast.Assign([each.target], each.value), each)
                if isinstance(each, ast.AnnAssign) and each.value is not None
                else each
                for each in body
            ]
        value = body[0].value if body and isinstance(body[0], ast.Expr) else None
        if name == "body" and isinstance(value, ast.Constant) and isinstance(value.value, str):
            del body[0]
    return True


@change_of(nodes=1)
def _without_default(tree: ast.Module, default: ast.expr) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.arguments) and default in node.kw_defaults:
            node.kw_defaults[node.kw_defaults.index(default)] = None
            return True
    return put(tree, default, [])


# -- parameters


def drop_parameters(program: Program) -> Iterator[Edit[Program]]:
    """A parameter with what calls pass for it; inside, where it is used, it becomes what the first call passed."""
    methods = {id(method) for named in Callees(program.tree).methods.values() for method in named}
    for function in functions_of(program.tree):
        given = function.args
        own = given.args[:1] if id(function) in methods else []
        for parameter in [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]:
            if parameter is not None and parameter not in own:
                what, numbers = (
                    f"{parameter.arg} of {function.name}",
                    (number_of(function), number_of(parameter)),
                )
                yield Edit(f"drop {what}", _without_parameter, (*numbers, False))
                yield Edit(f"set {what}", _without_parameter, (*numbers, True))


@change_of(nodes=2)
def _without_parameter(tree: ast.Module, function: Function, gone: ast.arg, inside: bool) -> bool:
    given = function.args
    passed = list(_passed(tree, function, gone))
    values = [value for _, value in passed if value is not None] + _default_of(given, gone)
    if inside and not values:
        return False
    if not inside and any(name.id == gone.arg for name in names_in(function)):
        return False  # it would become what else has that name, which nobody can see at the call
    for call, value in passed:
        if value is not None:
            call.args = [each for each in call.args if each is not value]
            call.keywords = [each for each in call.keywords if each.value is not value]
    _forget(given, gone)
    if inside:
        value = copy.deepcopy(values[0])
        function.body.insert(0, ast.Assign([ast.Name(gone.arg, ast.Store())], value))
    return True


def _passed(
    tree: ast.Module, function: Function, parameter: ast.arg
) -> Iterator[tuple[ast.Call, ast.expr | None]]:
    """The calls of a function, and what each passes for a parameter."""
    positional = [*function.args.posonlyargs, *function.args.args]
    for call, bound in Callees(tree).calls_of(function):
        named = {keyword.arg: keyword.value for keyword in call.keywords}
        place = positional.index(parameter) - bound if parameter in positional else -1
        starred = any(isinstance(argument, ast.Starred) for argument in call.args)
        if 0 <= place < len(call.args) and not starred:
            yield call, call.args[place]
        else:
            yield call, named.get(parameter.arg)


def _default_of(given: ast.arguments, parameter: ast.arg) -> list[ast.expr]:
    """The default of a parameter, if it has one."""
    positional = [*given.posonlyargs, *given.args]
    if parameter in positional:
        place = positional.index(parameter) - len(positional) + len(given.defaults)
        return [given.defaults[place]] if place >= 0 else []
    if parameter in given.kwonlyargs:
        return list(filter(None, [given.kw_defaults[given.kwonlyargs.index(parameter)]]))
    return []


def _forget(given: ast.arguments, parameter: ast.arg) -> None:
    for default in _default_of(given, parameter):
        given.defaults = [each for each in given.defaults if each is not default]
    if parameter in given.kwonlyargs:
        del given.kw_defaults[given.kwonlyargs.index(parameter)]
    for name in ("posonlyargs", "args", "kwonlyargs"):
        setattr(given, name, [each for each in getattr(given, name) if each is not parameter])
    given.vararg = None if given.vararg is parameter else given.vararg
    given.kwarg = None if given.kwarg is parameter else given.kwarg


# -- fewer functions


def leave_out_callers(program: Program) -> Iterator[Edit[Program]]:
    """What a function or class uses in the place of itself: the inner module for the whole model."""
    made = [n for n in ast.walk(program.tree) if isinstance(n, (Function, ast.ClassDef))]
    names = {each.name for each in made}
    for outer in made:
        used = {name.id for name in names_in(outer)} & (names - {outer.name})
        for inner in sorted(used):
            yield Edit(f"{inner} instead of {outer.name}", _instead, (number_of(outer), inner))


@change_of(nodes=1)
def _instead(tree: ast.Module, outer: Function | ast.ClassDef, inner: str) -> bool:
    if not put(tree, outer, []):
        return False
    for name in names_in(tree):
        if name.id == outer.name:
            name.id = inner
    return True


def inline_functions(program: Program) -> Iterator[Edit[Program]]:
    """The body of a function in the place of a statement that calls it; last, a value where it is used."""
    calls = Callees(program.tree)
    for function in functions_of(program.tree):
        if _can_be_inlined(function):
            for call, bound in calls.calls_of(function):
                if not bound and is_name(call.func, function.name):
                    yield Edit(f"inline {function.name}", _inlined, (number_of(function), number_of(call)))
    for owner, _, body in statement_lists(program.tree):
        if not isinstance(owner, ast.ClassDef):
            for statement, after in itertools.pairwise(body):
                if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                    what = f"put {statement.targets[0].id} where it is used"
                    yield Edit(what, _substituted, (number_of(statement), number_of(after)))


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


@change_of(nodes=2)
def _inlined(tree: ast.Module, function: Function, call: ast.Call) -> bool:
    place = _place_of(tree, call)
    values = _bound_values(function, call)
    if place is None or values is None or not _can_be_inlined(function):
        return False
    body, at, scope = place
    if any(node is body[at] for node in ast.walk(function)):
        return False
    moved = copy.deepcopy(function)
    _rename(moved, scope)
    parameters = [*moved.args.posonlyargs, *moved.args.args, *moved.args.kwonlyargs]
    stored = {name.id for statement in moved.body for name in names_in(statement, ast.Store)}
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
    statement = body[at]
    alone = isinstance(statement, ast.Expr) and statement.value is call
    put(tree, call, [result])
    if alone and isinstance(result, ast.Constant):
        del body[at]
    body[at:at] = [*set_first, *moved.body]
    if not any(name.id == function.name for name in names_in(tree)):
        put(tree, function, [])
    return True


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
        if place < len(call.args):
            values.append(call.args[place])
        elif parameter.arg in named:
            values.append(named[parameter.arg])
        elif default := _default_of(given, parameter):
            values += default
        else:
            return None
    return values


def _rename(function: Function, scope: ast.AST) -> None:
    """Gives the function's own variables other names where those mean something in a scope."""
    there = list(_own_nodes(scope))
    taken = {n.id for n in there if isinstance(n, ast.Name)} | {
        n.arg for n in there if isinstance(n, ast.arg)
    }
    own = {n.arg for n in ast.walk(function.args) if isinstance(n, ast.arg)}
    own |= {name.id for name in names_in(function, ast.Store)}
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
    replace_each(tree, lambda node: copy.deepcopy(value) if is_name(node, name) else node)


@change_of(nodes=2)
def _substituted(tree: ast.Module, statement: ast.Assign, user: ast.stmt) -> bool:
    if not isinstance(statement.targets[0], ast.Name):
        return False
    name = statement.targets[0].id
    uses = [each for each in names_in(tree) if each.id == name]
    inside = [each for each in names_in(user) if each.id == name]
    stored = [each for each in uses if not isinstance(each.ctx, ast.Load)]
    if len(stored) == 1 and isinstance(statement.value, _PLAIN):  # another name for the same
        put(tree, statement, [])
        _replace_name(tree, name, statement.value)
        return True
    simple = isinstance(user, (ast.Expr, ast.Assign, ast.Return))
    if not simple or len(uses) != 2 or len(inside) != 1 or len(stored) != 1:
        return False
    _replace_name(user, name, statement.value)
    return put(tree, statement, []) and len(ast.unparse(user)) <= LONGEST
