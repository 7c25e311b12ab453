"""Reads a script that PyTorch's own minifier wrote: `repro.py`, `minifier_launcher.py` or a checkpoint of either.

Such a script defines `mod` and `load_args(reader)` and starts at `if __name__ == "__main__"`; it is executed up to
there. 2.11..2.15 write `run_repro(mod, load_args, accuracy=..., command=..., save_dir=..., backend=...)` alike, 2.15
with `is_inference=`, settings that imply others as `config.load_config({...})`, and nested graphs as classes; the
tensors lie in `save_dir` in torch's own content store, which its `InputReader` opens. The graph is read from the text,
not traced: higher-order operators refuse a trace. Names that torch writes and does not import are given to the script.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from torchsleuth.script_runtime.reader import GRAPH_INFIX, read_graph
from torchsleuth.script_runtime.symbolic_inputs import SYMBOLIC_FUNCTIONS

# The script's own need, not the program's.
_OF_THE_SCRIPT = "fake_tensor_allow_unsafe_data_ptr_access"


@dataclass(frozen=True)
class ForeignScript:
    """The graph and inputs of a foreign script, at which level it compiles, and with which backend.

    `inference` is None where the script does not say: then torch compiles it for training. `sizes` are the expressions
    of symbolic sizes by the number of the input, in the order of `reader`; `symbols` their values.
    """

    graph: torch.fx.GraphModule
    inputs: list[Any]
    level: str
    backend: str
    accuracy: bool
    inference: bool | None
    autocast: bool
    config: dict[str, dict[str, str]]
    symbols: dict[str, int]
    sizes: dict[int, list[str] | str]


class NotHeld(Exception):
    """The script lacks what it would need to fail; says what."""


def is_foreign(text: str) -> bool:
    """Whether a script was written by PyTorch's minifier."""
    return bool(re.search(r"from torch\._dynamo\.repro\.after_(aot|dynamo) import run_repro", text))


def read_foreign(path: Path) -> ForeignScript:
    """Executes the definitions of a foreign script and loads its inputs; missing tensors are random, as in torch."""
    from torch._dynamo.debug_utils import InputReader

    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    options = _options(tree)
    if options.get("backend", "inductor") is None:
        raise NotHeld("its backend is a function of the program's, and PyTorch wrote backend=None instead")
    scope: dict[str, Any] = {"nan": math.nan, **SYMBOLIC_FUNCTIONS}
    scope |= {"__name__": "foreign_repro", "__file__": str(path)}
    exec(compile(text, str(path), "exec"), scope)
    kept = options.get("save_dir")
    reader = InputReader(save_dir=kept if kept and Path(kept).is_dir() else None)
    scope["load_args"](reader)
    after = re.search(r"repro\.after_(aot|dynamo) import run_repro", text)
    symbols, sizes = _sizes(tree, scope)
    inference = options.get("is_inference")
    return ForeignScript(
        _graph_of(tree, scope),
        list(reader.args),
        after[1] if after else "aot",
        str(options.get("backend") or "inductor"),
        bool(options.get("accuracy")),
        None if inference is None else bool(inference),
        bool(options.get("autocast")),
        settings_of(tree),
        symbols,
        sizes,
    )


def _options(tree: ast.Module) -> dict[str, Any]:
    """The literal keyword arguments of the call of `run_repro`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "run_repro":
            return {
                k.arg: k.value.value for k in node.keywords if k.arg and isinstance(k.value, ast.Constant)
            }
    return {}


def settings_of(tree: ast.Module) -> dict[str, dict[str, str]]:
    """The settings that a script makes, by module, as source.

    >>> settings_of(ast.parse("torch._inductor.config.load_config({'numerics': 'strict'})"))
    {'torch._inductor.config': {'numerics': "'strict'"}}
    """
    found: dict[str, dict[str, str]] = {}
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Attribute() as target], value=value):
                named = re.fullmatch(r"(torch\.[\w.]*?config)\.([\w.]+)", ast.unparse(target))
                made = [(named[1], named[2], value)] if named else []
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="load_config", value=module), args=[given])):
                values = given if isinstance(given, ast.Dict) else ast.Dict([], [])
                module_name = ast.unparse(module)
                made = [
                    (module_name, str(key.value), value)
                    for key, value in zip(values.keys, values.values)
                    if isinstance(key, ast.Constant)
                ]
            case _:
                made = []
        for module_name, key, value in made:
            if key != _OF_THE_SCRIPT:
                found.setdefault(module_name, {})[key] = ast.unparse(value)
    return found


# -- the inputs


def _sizes(tree: ast.Module, scope: dict[str, Any]) -> tuple[dict[str, int], dict[int, list[str] | str]]:
    """The symbols of the script with their values, and the sizes made of them, of each input that has such."""
    loads = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "load_args")
    given = [n.value for n in loads.body if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call)]
    symbols: dict[str, int] = {}
    sizes: dict[int, list[str] | str] = {}
    for place, call in enumerate(given):
        expressions = [str(k.value.value) for k in call.keywords if isinstance(k.value, ast.Constant)]
        if getattr(call.func, "attr", "") == "symint" and expressions:
            sizes[place] = expressions[0]
        elif len(call.args) > 1 and isinstance(call.args[1], ast.Tuple):
            sizes[place] = [ast.unparse(size) for size in call.args[1].elts]
        held = sizes.get(place, ())
        names = _names(held if isinstance(held, str) else f"({', '.join(held)},)" if held else "()")
        if not names or not all(type(scope.get(name)) is int for name in names):
            sizes.pop(place, None)
        else:
            symbols |= {name: scope[name] for name in names}
    return symbols, sizes


def _names(text: str) -> set[str]:
    found = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    return found - set(SYMBOLIC_FUNCTIONS)


# -- the graph


def _graph_of(tree: ast.Module, scope: dict[str, Any]) -> torch.fx.GraphModule:
    """The graph as it is written; what is written in another way is traced."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    try:
        plain = "\n\n".join(ast.unparse(_plain_class(each, scope)) for each in classes)
        graph = read_graph(plain, type(scope["mod"]).__name__, scope)
    except Exception:
        return torch.fx.symbolic_trace(scope["mod"])
    graph.load_state_dict(scope["mod"].state_dict(), strict=False)
    return graph


def _plain_class(made: ast.ClassDef, scope: dict[str, Any]) -> ast.ClassDef:
    """The class with one statement for each node in its `forward`, as `print_graph` writes it."""
    for item in made.body:
        if isinstance(item, ast.FunctionDef) and item.name == "forward":
            for argument in item.args.args:
                argument.annotation = None
            plain = _Plain({argument.arg: argument.arg for argument in item.args.args})
            item.body = list(plain.statements(item.body))
            for node in ast.walk(item):
                if isinstance(node, ast.Name) and node.id not in plain.names:
                    _make_known(node.id, scope)
    return made


@dataclass
class _Plain(ast.NodeTransformer):
    """Statements as fx prints them, less what frees a value, second names of a value, and assignment operators."""

    names: dict[str, str]
    # What was done to a value in place, until the name of that node comes.
    in_place: ast.expr | None = field(default=None)

    def statements(self, body: list[ast.stmt]) -> Iterator[ast.stmt]:
        for statement in body:
            match statement:
                case ast.Assign(value=ast.Constant(value=None)):
                    continue
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name() as value) if self.in_place:
                    made, self.in_place = self.in_place, None
                    self.names[name] = name
                    yield ast.Assign([ast.Name(name, ast.Store())], made, lineno=0)
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name(id=other)) if other in self.names:
                    self.names[name] = self.names[other]
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    value = self.visit(value)
                    self.names[name] = name
                    if isinstance(value, ast.Attribute) and not ast.unparse(value).startswith("self."):
                        value = _call("getattr", value.value, ast.Constant(value.attr))
                    yield ast.Assign([ast.Name(name, ast.Store())], value, lineno=0)
                case ast.Assign(targets=[ast.Subscript(value=held, slice=at)], value=value):
                    self.in_place = _call("operator.setitem", *map(self.visit, (held, at, value)))
                case ast.AugAssign(target=ast.Name() as held, op=sign, value=value):
                    name = "i" + GRAPH_INFIX[type(sign)].__name__.rstrip("_")
                    self.in_place = _call(f"operator.{name}", self.visit(held), self.visit(value))
                case ast.Return(value=value):
                    yield ast.Return(value and self.visit(value))
                case _:
                    raise ValueError(f"{ast.unparse(statement)} is no node of a graph")

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.names.get(node.id, node.id), ast.Load())


def _call(function: str, *args: ast.expr) -> ast.expr:
    return ast.Call(ast.parse(function, mode="eval").body, list(args), [])


def _make_known(name: str, scope: dict[str, Any]) -> None:
    """Puts what torch's printer means by a name of its own into the scope: `math_ceil`, `_operator_not_`."""
    if name in scope or hasattr(builtins, name) or name in ("self", "operator", "math"):
        return
    for module_name in sorted(sys.modules, key=len, reverse=True):
        rest = name.removeprefix(module_name.replace(".", "_") + "_")
        if rest == name:
            continue
        found = getattr(sys.modules[module_name], rest, None)
        if found is None and module_name == "torch._dynamo.utils":
            found = _numpy_function(rest)
        if found is not None:
            scope[name] = found
            return


def _numpy_function(name: str) -> Any:
    """What Dynamo calls of numpy, by the name under which it is printed (2.11..2.15): `wrapped_add`."""
    utils: Any = importlib.import_module("torch._dynamo.utils")
    if not name.startswith("wrapped_"):
        return None
    plain = name.removeprefix("wrapped_")
    function = getattr(importlib.import_module("torch._numpy"), plain, None)
    return utils.numpy_method_wrapper(plain) if function is None else utils.numpy_to_tensor_wrapper(function)
