"""What each kernel of a compiled graph writes, seen in the code that Inductor generated, while that code runs.

Inductor's wrapper is a Python function over named buffers that calls one kernel after the other. Here the text of that
function is taken once more, with a look after each statement that finishes a buffer; kernels stay the ones that were
compiled, so fusion is as it was, on CPUs and on accelerators alike. A buffer is worth a look where torch says of which
node it is the value.
Differs between torch versions: `GraphLowering.compile_to_module` gives the module, from 2.11 on. A wrapper that is not
Python (cpp_wrapper) shows nothing.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torchsleuth.torch_internals.configuration import without_caches
from torchsleuth.torch_internals.kernel_builds import built_together
from torchsleuth.torch_internals.places import replaced

# Calls that make memory or another view of it; they compute nothing.
_MEMORY = re.compile(r"(torch\.)?(empty|reinterpret_tensor|alloc_from_pool|_uninitialized)|as_strided$")
_OF_TORCH = ("torch.ops.aten.", "torch.ops.prims.", "torch.ops.inductor.")
_CHECKS = ("assert_", "print", "raise_if", "check_")
_LOOK = "_torchsleuth_look"


@dataclass(frozen=True)
class Written:
    """One finished buffer: its name, the node of the compiled graph whose value it holds, and the kernel.

    Of an input that is written, the node is the input itself.

    `call` is the number of the kernel's call: one kernel may serve several times.
    """

    buffer: str
    node: str
    kernel: str
    call: int = 0


Look = Callable[[Sequence[Written], Sequence[torch.Tensor]], None]


@dataclass
class CompiledCode:
    """The generated code of one graph. `look` is called with what each kernel has just finished, in order.

    `nodes` are the nodes of the graph as Inductor's passes left it, `written` all that can be seen in a run.
    """

    nodes: Mapping[str, torch.fx.Node]
    written: tuple[Written, ...]
    backward: bool = False
    look: Look | None = None
    # Why nothing can be seen, where nothing can.
    blind: str | None = None


@contextlib.contextmanager
def observed_code() -> Iterator[list[CompiledCode]]:
    """Inside, what Inductor compiles can be watched while it runs, there and later: the code of every graph, in order.

    Used as `with observed_code() as codes: torch.compile(torch.relu)(x)`; then `codes[0].written`.
    """
    codes: list[CompiledCode] = []

    def watched(original: Any) -> Any:
        def compile_to_module(graph: Any) -> Any:
            module = original(graph)
            build()
            if getattr(graph, "parent", None) is None:
                # A recorded CUDA graph replays kernels, not this code; nothing may be looked at while it is recorded.
                graph.disable_cudagraphs_reason = "its values are looked at while it runs"
                codes.append(_watched_module(graph, module))
            return module

        return compile_to_module

    place = ("torch._inductor.graph", "GraphLowering", "compile_to_module")
    with without_caches(), built_together() as build, replaced(*place, watched):
        yield codes


def _watched_module(graph: Any, module: Any) -> CompiledCode:
    fx_graph = graph.module.graph
    code = CompiledCode({n.name: n for n in fx_graph.nodes}, (), bool(getattr(graph, "is_backward", False)))
    if getattr(graph, "cpp_wrapper", False):
        code.blind = "its wrapper is C++ (cpp_wrapper), which shows no values"
        return code
    try:
        tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
        looks = _Looks(_values_of(graph), _kernels(tree))
        body = [looks.visit(each) for each in tree.body if _runs(each)]
    except (OSError, SyntaxError, AttributeError) as error:
        code.blind = f"its generated code cannot be read ({error})"
        return code
    code.written = tuple(looks.all)

    def look(number: int, *tensors: Any) -> None:
        if code.look is not None:
            found = [(w, t) for w, t in zip(looks.groups[number], tensors) if isinstance(t, torch.Tensor)]
            code.look([w for w, _ in found], [t for _, t in found])

    scope = module.__dict__
    scope[_LOOK] = look
    exec(compile(ast.fix_missing_locations(ast.Module(body, [])), module.__file__, "exec"), scope)
    return code


def _runs(statement: ast.stmt) -> bool:
    """What of a generated module calls its kernels: the functions, the runner's class, and the names for them."""
    if isinstance(statement, ast.ClassDef):
        return statement.name == "Runner"
    if isinstance(statement, ast.FunctionDef):
        return statement.name == "call" or statement.name.startswith("partition_")
    names = [each.id for each in getattr(statement, "targets", ()) if isinstance(each, ast.Name)]
    return any(name in ("runner", "call", "recursively_apply_fns") for name in names)


def _values_of(graph: Any) -> dict[str, str]:
    """For each buffer that holds the value of a node, the node's name; an input is its own."""
    found = {name: name for name in graph.graph_input_names}
    for buffer in graph.buffers:
        node = getattr(buffer, "origin_node", None)
        if node is not None:
            found[buffer.get_name()] = node.name
    return found


def _kernels(tree: ast.Module) -> dict[str, list[bool]]:
    """For each kernel of the module, which of its arguments it writes."""
    found = {}
    for statement in tree.body:
        if not (isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)):
            continue
        called = ast.unparse(statement.value.func)
        name = statement.targets[0].id if isinstance(statement.targets[0], ast.Name) else ""
        arguments = [each for each in statement.value.args if isinstance(each, (ast.List, ast.Constant))]
        if called.startswith("async_compile.cpp") and arguments and isinstance(arguments[0], ast.List):
            types = [str(each.value) for each in arguments[0].elts if isinstance(each, ast.Constant)]
            found[name] = ["*" in kind and not kind.startswith("const") for kind in types]
        elif called.startswith("async_compile.") and arguments:
            # Its function may have a plainer name than the kernel (`unique_kernel_names`), and is the first argument.
            function, text = (str(getattr(each, "value", "")) for each in (arguments[0], arguments[-1]))
            parameters = re.search(rf"def {re.escape(function)}\(([^)]*)\)", text)
            if parameters is not None:
                names = [each.split(":")[0].strip() for each in parameters[1].split(",")]
                users = "custom_kernel=True" in text  # a kernel of the user's may write any of them
                found[name] = [users or each.startswith(("out_ptr", "in_out_ptr")) for each in names]
    return found


class _Looks(ast.NodeTransformer):
    """Puts a look after the last statement that writes each buffer."""

    def __init__(self, values: Mapping[str, str], kernels: Mapping[str, list[bool]]) -> None:
        self.values = values
        self.kernels = kernels
        self.all: list[Written] = []
        self.groups: list[list[Written]] = []
        self._last: dict[str, ast.stmt] = {}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        alias: dict[str, str] = {}
        self._last = {}
        for statement in _statements(node):
            if isinstance(statement, ast.Delete):
                # Another view of that memory is a new use of it from here on.
                gone = {each.id for each in statement.targets if isinstance(each, ast.Name)}
                alias = {view: base for view, base in alias.items() if base not in gone}
                continue
            if isinstance(statement, ast.Assign) and (base := self._view_of(statement)):
                alias[base[0]] = base[1]
            for name in self._writes(statement):
                self._last[name] = statement
                while (name := alias.get(name, "")) != "":
                    self._last[name] = statement
        return self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> Any:
        for part in ("body", "orelse", "finalbody"):
            statements = getattr(node, part, None)
            if isinstance(statements, list):
                setattr(node, part, [new for old in statements for new in self._looked_at(old)])
        return node

    def _looked_at(self, statement: ast.stmt) -> list[ast.stmt]:
        if isinstance(statement, (ast.FunctionDef, ast.With, ast.If, ast.For, ast.While, ast.Try)):
            return [self.visit(statement)]
        names = [name for name, last in self._last.items() if last is statement and name in self.values]
        if not names:
            return [statement]
        kernel = self._kernel_of(statement)
        group = [Written(name, self.values[name], kernel, len(self.groups)) for name in names]
        arguments = ", ".join([str(len(self.groups)), *names])
        self.groups.append(group)
        self.all += group
        return [statement, *ast.parse(f"{_LOOK}({arguments})").body]

    def _kernel_of(self, statement: ast.stmt) -> str:
        """What a statement calls; of `buf13 = buf12[0]`, what made `buf12`."""
        call = _call_of(statement)
        if call is not None:
            return ast.unparse(call.func).removesuffix(".run")
        parts = self._names_in(getattr(statement, "value", ast.Constant(None)))
        made = self._last.get(parts[0]) if parts else None
        return self._kernel_of(made) if made is not None and made is not statement else ""

    def _writes(self, statement: ast.stmt) -> list[str]:
        call = _call_of(statement)
        if isinstance(statement, ast.Assign):
            target = statement.targets[0]
            computed = call is not None and not _MEMORY.match(ast.unparse(call.func))
            made = computed or isinstance(statement.value, ast.Subscript)
            named = made and len(statement.targets) == 1
            return [target.id] if named and isinstance(target, ast.Name) else []
        if call is None:
            return []
        called = ast.unparse(call.func)
        written = self.kernels.get(called.removesuffix(".run"))
        if written is not None:
            return [n for arg, out in zip(call.args, written) if out for n in self._names_in(arg)]
        out = next((each.value for each in call.keywords if each.arg == "out"), None)
        if out is not None:
            return self._names_in(out)[:1]
        if not call.args or called.startswith(_CHECKS):
            return []
        if called.startswith("torch.ops.") and not called.startswith(_OF_TORCH):
            # An operator of the user's may write any of them.
            given = [*call.args, *(each.value for each in call.keywords)]
            return [name for each in given for name in self._names_in(each)]
        return self._names_in(call.args[0])[:1]

    def _view_of(self, statement: ast.Assign) -> tuple[str, str] | None:
        """`buf1 = reinterpret_tensor(buf3, ...)`: the name of the view and that of what it is of."""
        call, target = _call_of(statement), statement.targets[0]
        if call is None or not call.args or "reinterpret_tensor" not in ast.unparse(call.func):
            return None
        base = self._names_in(call.args[0])
        return (target.id, base[0]) if base and isinstance(target, ast.Name) else None

    def _names_in(self, expression: ast.expr) -> list[str]:
        names = [each.id for each in ast.walk(expression) if isinstance(each, ast.Name)]
        return [name for name in names if name in self.values or name.startswith("buf")]


def _statements(function: ast.FunctionDef) -> Iterator[ast.stmt]:
    for node in ast.walk(function):
        for part in ("body", "orelse", "finalbody"):
            for each in getattr(node, part, None) or ():
                if isinstance(each, (ast.Assign, ast.Expr, ast.Delete)):
                    yield each


def _call_of(statement: ast.stmt) -> ast.Call | None:
    value = statement.value if isinstance(statement, (ast.Assign, ast.Expr)) else None
    return value if isinstance(value, ast.Call) else None
