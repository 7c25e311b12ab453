"""Which function of the program a call ends up in, as far as its text tells: by name, as a method, compiled."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

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
