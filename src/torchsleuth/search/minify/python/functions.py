"""Functions with less to them, and fewer of them: which one a call ends up in, as far as the text tells.

Parameters go from a function and from its calls; decorators, defaults, annotations, docstrings and base classes go one
by one. Bodies move to where they are called, values to where they are used, and callers give way to what they call.
"""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torchsleuth.search.minify.contract import Edit
from torchsleuth.search.minify.python.program import Nodes, Program, changed, number_of, put, statement_lists

Function = ast.FunctionDef | ast.AsyncFunctionDef
# What a call of an instance is, the first there is.
_CALLED = ("forward", "__call__")
# A chain of names that is longer goes in circles.
_DEEP = 8


@dataclass(frozen=True)
class Callee:
    """A function of the program; `bound` where a call does not pass its first parameter."""

    function: Function
    bound: bool = False


@dataclass
class Callees:
    """Answers whom the calls of a program reach: `Callees.of(tree).calls_of(function)`."""

    functions: dict[str, Function] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    methods: dict[str, list[Function]] = field(default_factory=dict)
    # Variables that are assigned once.
    values: dict[str, ast.expr | None] = field(default_factory=dict)
    calls: list[ast.Call] = field(default_factory=list)

    @classmethod
    def of(cls, tree: ast.AST) -> Callees:
        made = cls()
        inside = {id(f) for c in ast.walk(tree) if isinstance(c, ast.ClassDef) for f in c.body}
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                made.classes[node.name] = node
            elif isinstance(node, Function):
                if id(node) in inside:
                    made.methods.setdefault(node.name, []).append(node)
                else:
                    made.functions[node.name] = node
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                made.values[name] = None if name in made.values else node.value
            elif isinstance(node, ast.Call):
                made.calls.append(node)
        return made

    def calls_of(self, function: Function) -> Iterator[tuple[ast.Call, bool]]:
        """The calls that reach a function, and whether they leave out its first parameter."""
        for call in self.calls:
            found = self.callee(call.func)
            if found is not None and found.function is function:
                yield call, found.bound

    def callee(self, called: ast.expr, deep: int = 0) -> Callee | None:
        """The function that calling an expression runs."""
        if deep > _DEEP:
            return None
        if isinstance(called, ast.Name):
            if called.id in self.functions:
                return Callee(self.functions[called.id])
            if called.id in self.classes:
                return self._method(called.id, ("__init__",))
        if isinstance(called, ast.Attribute) and len(self.methods.get(called.attr, ())) == 1:
            method = self.methods[called.attr][0]
            return Callee(method, bound=not _is_static(method))
        return self._of_value(called, deep)

    def _of_value(self, value: ast.expr, deep: int) -> Callee | None:
        """The function that calling a value runs: an instance, a function, either of them compiled."""
        if isinstance(value, ast.Name):
            known = self.values.get(value.id)
            return None if known is None else self._called(known, deep + 1)
        return self._called(value, deep + 1) if isinstance(value, ast.Call) else None

    def _called(self, value: ast.expr, deep: int) -> Callee | None:
        if not isinstance(value, ast.Call):
            return self.callee(value, deep)
        if isinstance(value.func, ast.Name) and value.func.id in self.classes:
            return self._method(value.func.id, _CALLED)
        if value.args and not (isinstance(value.func, ast.Name) and value.func.id in self.functions):
            # torch.compile(f), torch.func.grad(f), torch.compile(model), functools.wraps(f): a call of f in the end.
            inner = value.args[0]
            return self._of_value(inner, deep) or self.callee(inner, deep)
        # model.eval(), Model().to(device): still the model.
        if isinstance(value.func, ast.Attribute):
            return self._of_value(value.func.value, deep)
        return None

    def _method(self, name: str, wanted: tuple[str, ...]) -> Callee | None:
        found = {f.name: f for f in self.classes[name].body if isinstance(f, Function)}
        return next((Callee(found[each], bound=True) for each in wanted if each in found), None)


def _is_static(function: Function) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list)


def functions_of(tree: ast.AST) -> list[Any]:
    return [node for node in ast.walk(tree) if isinstance(node, Function)]


def drop_trimmings(program: Program) -> Iterator[Edit[Program]]:
    """Annotations, docstrings, decorators, defaults, base classes: what a definition may do without."""
    yield Edit("annotations and docstrings", _without_annotations)
    for node in ast.walk(program.tree):
        for kind in ("decorator_list", "bases", "keywords"):
            if kind == "keywords" and not isinstance(node, ast.ClassDef):
                continue
            for part in getattr(node, kind, ()):
                yield Edit(f"drop {ast.unparse(part)}", _without_part, (number_of(part),))
        if isinstance(node, ast.arguments):
            for default in [*node.defaults, *filter(None, node.kw_defaults)]:
                yield Edit(
                    f"drop the default {ast.unparse(default)}", _without_default, (number_of(default),)
                )
        if isinstance(node, (ast.Import, ast.ImportFrom)) and len(node.names) > 1:
            for alias in node.names:
                yield Edit(f"do not import {alias.name}", _without_part, (number_of(alias),))


def _without_annotations(program: Program) -> Program | None:
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


def _without_part(program: Program, number: int) -> Program | None:
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
        for name_of_field, child in ast.iter_fields(node):
            if isinstance(child, ast.Name) and child.id == name:
                setattr(node, name_of_field, copy.deepcopy(value))
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
