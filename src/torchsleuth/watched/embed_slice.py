"""Where a live value comes from, and the least that a script needs of the file that made it.

A value comes from an installed package, a name in a file of the user's, or nowhere. A file is a row of top-level
statements, each of which says which names it binds and which it uses; the compiler's own view of it (its byte code) is
asked, so a local variable is never taken for a global one. A slice is the least set of statements that is closed under
"binds a name that is used" and "configures a name that is in", in file order.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import dis
import functools
import inspect
import linecache
import os
import re
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from torchsleuth.watched.startup import is_installed

# ---- where a value comes from


def has_source(module: object) -> TypeGuard[types.ModuleType]:
    """Whether this is a module with a Python file: `has_source(json)`."""
    return isinstance(module, types.ModuleType) and str(getattr(module, "__file__", None) or "").endswith(
        ".py"
    )


def third_party(module: types.ModuleType) -> bool:
    """Whether a module was installed by a person, apart from torch: `third_party(numpy)`."""
    package = module.__name__.partition(".")[0]
    return (
        installed(module.__dict__)
        and package not in {"torch", "triton", "sympy", "torchsleuth"} | sys.stdlib_module_names
    )


def installed(namespace: Mapping[str, Any]) -> bool:
    """Whether a module comes with Python or from an installed package, and so needs no pasting."""
    path = namespace.get("__file__")
    if path is None:  # built in, unless it is what someone executes code in
        return namespace.get("__name__") not in (None, "__main__") and not namespace.get("__path__")
    return is_installed(os.path.abspath(str(path)))


def global_name(value: Any) -> tuple[Mapping[str, Any], str] | None:
    """The module namespace and dotted name under which a value can be had, if there is one.

    Triton's kernels wrap each other as `fn`: the name is that of the function, and may hold what wraps the value.
    """
    if is_kernel(value):
        function = value
        while not hasattr(function, "__qualname__"):
            function = function.fn
        space, path = vars(sys.modules.get(function.__module__) or sys), str(function.__qualname__)
        held: Any = _attribute(space, path)
        while held is not value and is_kernel(held):
            held, path = held.fn, f"{path}.fn"
        if held is value and "<" not in path:
            return space, path
    home = sys.modules.get(getattr(value, "__module__", None) or "")
    spaces = [getattr(value, "__globals__", None), getattr(home, "__dict__", None)]
    dotted = getattr(value, "__qualname__", None)
    for space in filter(None, spaces):
        if isinstance(dotted, str) and "<" not in dotted and _attribute(space, dotted) is value:
            return space, dotted
    if not isinstance(value, types.FunctionType):
        spaces += [
            m.__dict__ for m in list(sys.modules.values()) if has_source(m) and not installed(m.__dict__)
        ]
    for space in filter(None, spaces):
        for name, held in list(space.items()):
            if held is value and not name.startswith("__"):
                return space, name
    return None


def is_kernel(value: Any) -> bool:
    """Whether this is a kernel of Triton's, or what its decorators made of one: `is_kernel(add_kernel)`."""
    return type(value).__module__ in ("triton.runtime.jit", "triton.runtime.autotuner") and hasattr(
        value, "fn"
    )


def maker_of(function: types.FunctionType) -> tuple[types.FunctionType | None, dict[str, types.CellType]]:
    """The library function that returned a closure, and the cells of the closure; None where that cannot be told.

    It can where each parameter that has no default is held by the closure, under its own name.

    >>> import torch
    >>> maker_of(torch.vmap(abs))[0] is torch.vmap
    True
    """
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
    name, _, inside = function.__code__.co_qualname.partition(".<locals>.")
    found = function.__globals__.get(name)
    if not inside or "." in inside or not isinstance(found, types.FunctionType):
        return None, {}
    home = sys.modules.get(found.__module__)
    parameters = inspect.signature(found).parameters.values()
    wanted = [each for each in parameters if each.default is each.empty]
    if (
        not installed(function.__globals__)
        or any(each.kind is not each.POSITIONAL_OR_KEYWORD for each in wanted)
        or any(each.name not in cells for each in wanted)
        or getattr(home, found.__qualname__, None) is not found
    ):
        return None, {}
    return found, cells


def defined_in(value: Any) -> str:
    """The file, or the cell of a notebook, in which a function or class was written; empty where that is not known.

    >>> defined_in(defined_in).endswith("embed_slice.py")
    True
    """
    if isinstance(value, type):
        value = next((each for each in vars(value).values() if hasattr(each, "__code__")), None)
    return str(getattr(getattr(value, "__code__", None), "co_filename", ""))


def importable_from(module: str, path: str) -> str:
    """The module whose name in a script leads to what this one holds: a package may hide its own files.

    >>> importable_from("json.decoder", "JSONDecoder")
    'json.decoder'
    """
    package, _, name = module.rpartition(".")
    above = sys.modules.get(package)
    if above is None or getattr(above, name, None) is sys.modules.get(module):
        return module
    value = _attribute(vars(sys.modules[module]), path)
    return package if _attribute(vars(above), path) is value else module


def _attribute(namespace: Mapping[str, Any], dotted: str) -> object:
    root, *rest = dotted.split(".")
    return functools.reduce(lambda owner, name: getattr(owner, name, None), rest, namespace.get(root))


def same_literal(read: object, value: object) -> bool:
    """Whether a literal read back is the value it was written from, type included: not `1` for `True`."""
    return type(read) is type(value) and bool(read == value)


@functools.lru_cache(maxsize=256)
def package_of(op: str, loaded: int) -> types.ModuleType | None:
    """The installed module that registers an op; looked for once as long as no further modules are loaded."""
    space = op.partition("::")[0]
    if space in sys.modules and third_party(sys.modules[space]):
        return sys.modules[space]
    library = re.compile(rf"{re.escape(op)}\b|Library\(\s*[\"']{re.escape(space)}[\"']")
    for module in list(sys.modules.values()):
        if has_source(module) and third_party(module):
            with (
                contextlib.suppress(OSError),
                open(str(module.__file__), encoding="utf-8", errors="replace") as file,
            ):
                if library.search(file.read()):
                    return module
    return None


# ---- a file as a row of statements


# Functions of torch.library, and methods of what it returns, that name an op or take one.
REGISTRARS = {"custom_op", "triton_op", "define", "impl", "impl_abstract", "fallthrough_kernel"}
REGISTRARS |= {f"register_{w}" for w in ("fake", "autograd", "kernel", "vmap", "torch_dispatch", "autocast")}
_OF_LIBRARY = frozenset(("define", "impl", "_register_fake"))  # methods that name their op without namespace
_READS = {"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"}


class CannotEmbed(Exception):
    """The object has no source that could stand in a script; the text says why and what to do."""


@dataclass(frozen=True)
class Statement:
    """One top-level statement; `guarded` ones stand under `if __name__ == "__main__"`."""

    node: ast.stmt
    text: str
    binds: frozenset[str]
    uses: frozenset[str]
    guarded: bool

    @property
    def imports(self) -> bool:
        return isinstance(self.node, (ast.Import, ast.ImportFrom))


@dataclass(frozen=True)
class SourceFile:
    """A parsed file: its statements in order."""

    path: str
    tree: ast.Module
    statements: tuple[Statement, ...]


def source_file(path: str) -> SourceFile:
    """The statements of a file: `source_file("train.py").statements[0].binds`."""
    lines = linecache.getlines(path)
    if not lines:
        raise CannotEmbed(
            f"its source cannot be read from {os.path.basename(path)!r}; define it in a file and run that."
        )
    return _parsed(path, "".join(lines))


@functools.lru_cache(maxsize=64)
def _parsed(path: str, text: str) -> SourceFile:
    try:
        tree = ast.parse(text)
    except SyntaxError as failure:
        raise CannotEmbed(f"{os.path.basename(path)} does not parse any more ({failure.msg}).") from None
    quoted = any(_is_future(node) and node.names[0].name == "annotations" for node in tree.body)
    statements = []
    for node, guarded in _top_level(tree.body):
        if not _is_future(node):
            statements.append(_statement(node, text, tree, guarded, quoted))
    return SourceFile(path, tree, tuple(statements))


def closed_slice(
    file: SourceFile, names: set[str], ops: set[str], live: Mapping[str, Any], by_text: bool = False
) -> tuple[list[Statement], set[str]]:
    """The statements that `names` and the custom ops need, and the names that no statement binds.

    With `by_text` a name is needed as well where it is written as a text or an attribute (`globals()["build"]`,
    `sys.modules[__name__].build`), and so is what a decorator of the file registers somewhere.
    """
    needed, chosen = set(names), set[int]()
    own_statements = [s for s in file.statements if by_text and not s.guarded and not s.imports]
    defined = {name: s.uses for s in own_statements for name in s.binds}
    grew = True
    while grew:
        grew = False
        own = {n for i in chosen if not file.statements[i].imports for n in file.statements[i].binds}
        for i, statement in enumerate(file.statements):
            binds = bool(_given_by(statement, live) & needed) and not statement.guarded
            registers_it = (defined[n] for n in _decorators(statement.node) if n in defined)
            registered = not statement.guarded and any(uses & own for uses in registers_it)
            if i in chosen or not (binds or registered or _configures(statement.node, own, ops, live)):
                continue
            chosen.add(i)
            needed |= statement.uses | (_written(statement.node) & defined.keys())
            grew = True
    kept = [file.statements[i] for i in sorted(chosen)]
    bound = {name for statement in kept for name in statement.binds}
    return kept, {
        name for name in needed - bound if not hasattr(builtins, name) and not name.startswith("__")
    }


def _written(node: ast.stmt) -> set[str]:
    """The texts and attributes in a statement: `_written(ast.parse("a.b['c']").body[0]) == {"b", "c"}`."""
    texts = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return texts | {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}


def _decorators(node: ast.stmt) -> set[str]:
    return {_root(each) for each in getattr(node, "decorator_list", ())}


def _given_by(statement: Statement, live: Mapping[str, Any]) -> set[str]:
    """The names a statement is needed for: a module is imported by its name, whatever work some call did to get it."""
    if statement.imports:
        return set(statement.binds)
    return {name for name in statement.binds if not isinstance(live.get(name), types.ModuleType)}


def registers(file: SourceFile, op: str, live: Mapping[str, Any]) -> bool:
    """Whether this file registers `ns::op`; refused where it does so inside a function or class.

    `registers(source_file("ops.py"), "mylib::scale", vars(ops))`
    """
    opens = any(_last_name(call.func) == "Library" for call in registrations(file.tree, {op}, live))

    def hits(node: ast.AST) -> list[ast.Call]:
        calls = [c for c in ast.walk(node) if isinstance(c, ast.Call)]
        direct = [c for c in registrations(node, {op}, live) if _last_name(c.func) != "Library"]
        short = [c for c in calls if opens and _last_name(c.func) in _OF_LIBRARY and c.args]
        return direct + [c for c in short if _op_of(_text(c.args[0], live)) == op.partition("::")[2]]

    every = hits(file.tree)
    outside = [hit for s in file.statements for hit in hits(_outside(s.node))]
    if len(every) > len(outside):
        where = (
            f"line {min(hit.lineno for hit in every if hit not in outside)} of {os.path.basename(file.path)}"
        )
        raise CannotEmbed(
            f"the custom op {op} is registered inside a function or class ({where}); move it to top level."
        )
    return bool(every)


def registrations(node: ast.AST, ops: set[str], live: Mapping[str, Any]) -> Iterator[ast.Call]:
    """The calls below `node` that register one of these `ns::op`, or open a library of such a namespace."""
    spaces = {op.partition("::")[0] for op in ops}
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            name = _last_name(call.func)
            texts = [t for a in [*call.args, *(k.value for k in call.keywords)] if (t := _text(a, live))]
            if (name in REGISTRARS and any(_op_of(t) in ops for t in texts)) or (
                name == "Library" and any(t in spaces for t in texts[:1])
            ):
                yield call


def find_function(file: SourceFile, code: types.CodeType) -> ast.FunctionDef | ast.Lambda:
    """The definition in the file that this code object was compiled from."""
    found: list[ast.FunctionDef | ast.Lambda] = []
    if code.co_name == "<lambda>":
        found += _lambdas(file, code)
    for node in ast.walk(file.tree):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first == code.co_firstlineno:
                found.append(node)
    if len(found) != 1:
        raise CannotEmbed(
            f"its definition is not at line {code.co_firstlineno} of {os.path.basename(file.path)}."
        )
    return found[0]


def _lambdas(file: SourceFile, code: types.CodeType) -> list[ast.Lambda]:
    """The innermost lambdas whose body holds every place of the code."""
    places = {p for p in code.co_positions() if None not in p and p[2:] != (0, 0)}  # the last: of no text
    begin = min(((line, column) for line, _, column, _ in places), default=(0, 0))
    end = max(((line, column) for _, line, _, column in places), default=(0, 0))

    def holds(node: ast.expr) -> bool:
        last = (node.end_lineno or 0, node.end_col_offset or 0)
        return (node.lineno, node.col_offset) <= begin and end <= last

    found = [node for node in ast.walk(file.tree) if isinstance(node, ast.Lambda) and holds(node.body)]
    return found[-1:]  # one that is inside of another is found after it


def find_class(file: SourceFile, name: str, lines: set[int]) -> ast.ClassDef:
    """The definition of a class in the file, by the lines at which its methods begin."""
    found = [node for node in ast.walk(file.tree) if isinstance(node, ast.ClassDef) and node.name == name]
    if len(found) > 1:
        found = [node for node in found if any(node.lineno <= n <= (node.end_lineno or 0) for n in lines)]
    if len(found) != 1:
        raise CannotEmbed(
            f"the definition of the class {name} is not found in {os.path.basename(file.path)}."
        )
    return found[0]


def names_used(node: ast.stmt) -> set[str]:
    """The names that a statement, taken by itself, reads from around it: global ones, and `nonlocal` ones."""
    rebound = {name for each in ast.walk(node) if isinstance(each, ast.Nonlocal) for name in each.names}
    if not rebound:
        return _globals_read(_compiled(node))
    # By itself it is not Python: something around it must have those names.
    around = ast.parse(f"def around({', '.join(sorted(rebound))}): pass").body[0]
    assert isinstance(around, ast.FunctionDef)
    around.body = [node]
    whole = _compiled(around)
    body = next(each for each in whole.co_consts if isinstance(each, types.CodeType))
    return _globals_read(whole) | (rebound & {*body.co_cellvars})


def _globals_read(code: types.CodeType) -> set[str]:
    return {i.argval for each in _codes(code) for i in dis.get_instructions(each) if i.opname in _READS}


def _statement(node: ast.stmt, text: str, tree: ast.Module, guarded: bool, quoted: bool) -> Statement:
    start = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
    shared = node not in tree.body or any(
        n is not node and n.lineno <= (node.end_lineno or 0) and (n.end_lineno or 0) >= start
        for n in tree.body
    )
    lines = text.splitlines()[start - 1 : node.end_lineno]
    uses = names_used(node)
    if quoted:
        node = _QuoteAnnotations().visit(node)
    own = ast.unparse(node) if shared or quoted else "\n".join(lines)
    stored = {i.argval for i in dis.get_instructions(_compiled(node)) if i.opname == "STORE_NAME"}
    return Statement(node, own, frozenset(stored), frozenset(uses), guarded)


class _QuoteAnnotations(ast.NodeTransformer):
    """What `from __future__ import annotations` does, for a script that cannot start with it."""

    def visit(self, node: ast.AST) -> Any:
        for name in ("annotation", "returns"):
            value = getattr(node, name, None)
            if isinstance(value, ast.expr) and not isinstance(value, ast.Constant):
                setattr(node, name, ast.copy_location(ast.Constant(ast.unparse(value)), value))
        return self.generic_visit(node)


# Definitions under the guard do no work by themselves, so they may stand in a script.
_HARMLESS = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)


def _top_level(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, bool]]:
    for node in body:
        test = node.test if isinstance(node, ast.If) else None
        if isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__":
            yield from ((inner, not isinstance(inner, _HARMLESS)) for inner in node.body)  # type: ignore[attr-defined]
        else:
            yield node, False


def _is_future(node: ast.stmt) -> TypeGuard[ast.ImportFrom]:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _compiled(node: ast.stmt) -> types.CodeType:
    return compile(ast.fix_missing_locations(ast.Module([node], [])), "<slice>", "exec", dont_inherit=True)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _configures(node: ast.stmt, own: set[str], ops: set[str], live: Mapping[str, Any]) -> bool:
    """Whether a statement sets up a name that is in the slice, or registers a wanted custom op."""
    if isinstance(node, (ast.Assign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(t, (ast.Attribute, ast.Subscript)) and _root(t) in own for t in targets):
            return True
    calls: list[ast.expr] = list(getattr(node, "decorator_list", ()))
    if isinstance(node, ast.Expr):
        calls.append(node.value)
    return any(_sets_up(call, own, ops, live) for call in calls) or (
        bool(ops) and any(True for _ in registrations(_outside(node), ops, live))
    )


def _sets_up(call: ast.expr, own: set[str], ops: set[str], live: Mapping[str, Any]) -> bool:
    func = call.func if isinstance(call, ast.Call) else call
    arguments = call.args if isinstance(call, ast.Call) else []
    name = _last_name(func)
    texts = [text for a in arguments if (text := _text(a, live))]
    if ops and name in _OF_LIBRARY and texts and not _names_op(texts[0], ops):
        return False  # the same library, another op
    if isinstance(func, ast.Attribute) and _root(func) in own:
        return True
    return name in REGISTRARS and any(_root(a) in own for a in arguments)


def _names_op(text: str, ops: set[str]) -> bool:
    return _op_of(text).rpartition("::")[2] in {op.partition("::")[2] for op in ops}


def _op_of(text: str) -> str:
    """`ns::op` of a schema or a qualified overload: `_op_of("ns::f.out(Tensor x) -> Tensor") == "ns::f"`."""
    return re.split(r"[.(\s]", text, maxsplit=1)[0]


def _outside(node: ast.stmt) -> ast.AST:
    """What of a statement runs at once: of a function or class only its decorators."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return ast.Tuple(list(node.decorator_list), ast.Load())
    return node


def _last_name(func: ast.expr) -> str:
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def _root(node: ast.expr) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _text(node: ast.expr, live: Mapping[str, Any]) -> str:
    value = live.get(node.id) if isinstance(node, ast.Name) else getattr(node, "value", None)
    return value if isinstance(value, str) else ""
