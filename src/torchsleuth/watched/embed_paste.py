"""The pasted part of a script as it grows: imports, slices of files, values rebuilt from them.

Everything asked for becomes an expression; asking may add statements to a file's slice, which may ask for
more.  The text is written only when nothing asks any more, each file after those it takes names from.
"""

import ast
import builtins
import copy
import functools
import importlib.util
import inspect
import linecache
import os
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchsleuth.core.cases.record import Embedded
from torchsleuth.watched.embed_slice import (
    CannotEmbed,
    SourceFile,
    Statement,
    closed_slice,
    defined_in,
    find_class,
    find_function,
    global_name,
    has_source,
    importable_from,
    installed,
    is_kernel,
    maker_of,
    names_used,
    package_of,
    registers,
    same_literal,
    source_file,
    third_party,
)

# Values of torch whose repr, with `torch.` in front where it lacks, is an expression for them.
_TORCH_VALUES = {"dtype", "device", "layout", "memory_format", "Size"}


@dataclass
class _Slice:
    """What is wanted of one file, and the names that its statements take from elsewhere."""

    file: SourceFile
    live: Mapping[str, Any]
    names: set[str] = field(default_factory=set)
    ops: set[str] = field(default_factory=set)
    kept: list[Statement] = field(default_factory=list)
    given: dict[str, str] = field(default_factory=dict)  # name to expression, set before the statements
    given_late: dict[str, str] = field(default_factory=dict)  # and after everything
    rewritten: dict[int, str] = field(default_factory=dict)  # place in `file.statements` to other text
    after: set[str] = field(default_factory=set)  # files that must come first

    def bound(self) -> set[str]:
        """The names that the slice leaves behind, its imports included."""
        return {name for statement in self.kept for name in statement.binds}


class Paste:
    """The script part as it grows: folders to import from, slices of files, then what is made from them."""

    def __init__(self, by_value: tuple[type, ...] = (), by_text: bool = False) -> None:
        """Objects of the classes `by_value` are written as what they are, though a name of a file may hold them.

        With `by_text` names of a file are also found where they are written as a text.
        """
        self.by_value, self.by_text = by_value, by_text
        # Asked for what has no source of its own, before it is refused; see `value_source.py`.
        self.write_value: Callable[[Any, str], str | None] = lambda value, hint: None
        self.slices: dict[str, _Slice] = {}
        self.imports: dict[str, None] = {}
        self.notes: dict[str, None] = {}
        self.head: dict[str, None] = {}
        self.tail: list[str] = []
        self.bound: dict[str, tuple[object, str]] = {}
        self.made: dict[int, tuple[object, str | None]] = {}

    def bind(self, name: str, value: object) -> None:
        """Lets the script bind `name` to a value like this one."""
        named = global_name(value)
        if named and "." not in named[1] and installed(named[0]) and self.simple(value) is None:
            module, root = str(named[0]["__name__"]), named[1]
            self._needs(module)
            self.imports[f"from {module} import {root}" + (f" as {name}" if name != root else "")] = None
            return
        self.bound[name] = (value, self.expression(value, name))

    def register(self, op: str, modules: Iterable[types.ModuleType] | None, libraries: Sequence[str]) -> None:
        """Adds the statements of the user's files that register an op, or the import or library that does."""
        space = op.partition("::")[0]
        found = False
        for module in list(sys.modules.values() if modules is None else modules):
            if not has_source(module):
                continue
            text = "" if installed(module.__dict__) else "".join(linecache.getlines(str(module.__file__)))
            if space in text and registers(source_file(str(module.__file__)), op, module.__dict__):
                self.want(module.__dict__).ops.add(op)
                found = True
        if found:
            return
        if (package := package_of(op, len(sys.modules))) is not None:
            self.simple(package)
        elif libraries:
            self.imported("torch")
            for path in sorted(map(str, libraries)):
                self.head[f"torch.ops.load_library({path!r})"] = None
                self.notes[f"loads the shared library {os.path.basename(path)}, which must be there"] = None
        else:
            raise CannotEmbed(
                f"no file of the program registers the custom op {op} in a way that can be read off its source; "
                "register it at the top level of a file, with its name written out."
            )

    def expression(self, value: Any, hint: str) -> str:
        """An expression that yields this value once the slices and the tail so far have run."""
        if (simple := self.simple(value)) is not None:
            return simple
        if id(value) not in self.made:
            self.made[id(value)] = (value, None)
            self.made[id(value)] = (value, self._made(value, hint))
        known = self.made[id(value)][1]
        if known is None:
            raise CannotEmbed(f"it refers to itself through {hint!r}; make it a top-level definition.")
        return known

    def simple(self, value: Any) -> str | None:
        """The expression of a literal, a module or a value of torch such as a dtype; None for others."""
        if isinstance(value, types.ModuleType):
            if installed(value.__dict__):
                return self.imported(value.__name__)
            self._by_path(value)
            self.head[f"import {value.__name__}"] = None
            return value.__name__
        if type(value).__name__ in _TORCH_VALUES and type(value).__module__ == "torch":
            return f"{self.imported('torch')}.{repr(value).removeprefix('torch.')}"
        try:
            text = repr(value)
            return text if same_literal(ast.literal_eval(text), value) else None
        except Exception:  # a user's __repr__ may do anything; then it is no literal
            return None

    def _made(self, value: Any, hint: str) -> str:
        if isinstance(value, functools.partial):
            parts = [self.expression(value.func, hint)]
            parts += [self.expression(a, hint) for a in value.args]
            parts += [f"{k}={self.expression(v, k)}" for k, v in value.keywords.items()]
            return f"{self.imported('functools')}.partial({', '.join(parts)})"
        if isinstance(value, types.MethodType):
            owner = value.__self__
            name = hint if isinstance(owner, type) else type(owner).__name__.lower()
            return f"{self.expression(owner, name)}.{value.__name__}"
        named = None if isinstance(value, self.by_value) else global_name(value)
        if named is not None and self._has_source(*named, defined_in(value)):
            return self._named(*named, defined_in(value))
        if isinstance(value, types.FunctionType):
            return self._made_again(value) or self._rebuilt(value, hint)
        if is_kernel(value):
            return self._kernel(value, hint)
        if isinstance(value, type) and defined_in(value):
            return self._rebuilt_class(value, hint)
        if (written := self.write_value(value, hint)) is not None:
            return written
        what = f"an instance of {type(value).__name__}"
        if isinstance(value, type):
            what = f"the class {value.__name__}, defined inside a function"
        raise CannotEmbed(f"{hint!r} is {what} that no top-level name of a file holds; give it one.")

    def _has_source(self, namespace: Mapping[str, Any], path: str, defined: str) -> bool:
        """Whether a script can have this name: not one that the guarded part of the main file made."""
        if installed(namespace):
            return True
        if not namespace.get("__file__"):  # a prompt, or a notebook, whose cells Python knows like files
            return bool(defined)
        root = path.partition(".")[0]
        file = str(namespace["__file__"])
        made = [s for s in source_file(file).statements if root in s.binds]
        if not made and defined:  # by exec, and then its text is elsewhere, if anywhere
            return os.path.abspath(defined) == os.path.abspath(file)
        return not made or any(not s.guarded for s in made)

    def _named(self, namespace: Mapping[str, Any], path: str, filename: str) -> str:
        """A top-level name, or an attribute of one: imported where installed, else sliced from its file."""
        module = str(namespace.get("__name__"))
        if module == "builtins":
            return path
        if installed(namespace):
            return f"{self.imported(importable_from(module, path))}.{path}"
        self.want(namespace, filename).names.add(path.partition(".")[0])
        return path

    def want(self, namespace: Mapping[str, Any], filename: str = "") -> _Slice:
        """The slice of a module's file, to add names and ops to."""
        path = str(namespace.get("__file__") or filename)
        if not path:
            raise CannotEmbed("it was typed at a prompt or given with -c; define it in a file and run that.")
        if path not in self.slices:
            self.slices[path] = _Slice(source_file(path), namespace)
        return self.slices[path]

    def _made_again(self, function: types.FunctionType) -> str | None:
        """A closure that a library's function returned, as `torch.vmap(f)`: that function, given what it was given."""
        factory, cells = maker_of(function)
        if factory is None:
            return None
        given = []
        for name, parameter in inspect.signature(factory).parameters.items():
            value = _content(cells[name], name) if name in cells else parameter.default
            if value is not parameter.default:
                by_name = "" if parameter.default is parameter.empty else f"{name}="
                given.append(by_name + self.expression(value, name))
        return f"{self.imported(factory.__module__)}.{factory.__qualname__}({', '.join(given)})"

    def _rebuilt(self, function: types.FunctionType, hint: str, annotated: bool = False) -> str:
        """A nested function or lambda: its definition inside a factory that takes its free variables.

        They are arguments, because a value is often found under its own name: `torch = torch` inside binds nothing.
        """
        code, live = function.__code__, function.__globals__
        file = source_file(code.co_filename)
        node = copy.deepcopy(find_function(file, code))
        bare = copy.deepcopy(node)  # whose defaults are names of ours
        _plain_signature(bare, function, lambda value: "None", annotated)
        _plain_signature(node, function, lambda value: self.expression(value, hint), annotated)
        statement = node if isinstance(node, ast.FunctionDef) else ast.Return(node)
        used = names_used(bare if isinstance(bare, ast.FunctionDef) else ast.Expr(bare))
        closure = dict(zip(code.co_freevars, function.__closure__ or ()))
        held = {name: _content(cell, name) for name, cell in closure.items() if name in used}
        itself = {name for name, value in held.items() if value is function}
        itself |= {code.co_name} - live.keys() - held.keys()
        given = self._given(used - itself, held, live, code.co_filename)
        body = [ast.unparse(ast.fix_missing_locations(statement))]
        if isinstance(node, ast.FunctionDef):
            body.append(f"return {node.name}")
        variable = self._made_by_a_function(body, given)
        for name, value in vars(function).items():
            if name != "__wrapped__" and not name.startswith(
                "_torchdynamo"
            ):  # torch's marks on what it wrapped
                self.tail.append(f"{variable}.{name} = {self.expression(value, name)}")
        self.notes[f"{hint}: rebuilt from line {code.co_firstlineno} of {os.path.basename(file.path)}"] = None
        return variable

    def _kernel(self, kernel: Any, hint: str) -> str:
        """A Triton kernel that no name holds: defined inside a function, or wrapped anew by Dynamo."""
        triton = self.imported("triton")
        if hasattr(kernel, "configs"):
            configs = ", ".join(self._configuration(each, hint) for each in kernel.configs)
            more = {name: getattr(kernel, name, None) for name in ("reset_to_zero", "restore_value")}
            given = "".join(f", {name}={value!r}" for name, value in more.items() if value)
            made = f"{triton}.autotune(configs=[{configs}], key={list(kernel.keys)!r}{given})"
            return f"{made}({self.expression(kernel.fn, hint)})"
        if hasattr(kernel, "values"):
            values = ", ".join(f"{name!r}: {self.expression(v, name)}" for name, v in kernel.values.items())
            return f"{triton}.heuristics({{{values}}})({self.expression(kernel.fn, hint)})"
        options = ("do_not_specialize", "do_not_specialize_on_alignment", "noinline")
        more = {name: getattr(kernel, name, None) for name in options}
        given = ", ".join(f"{name}={value!r}" for name, value in more.items() if value)
        made = f"{triton}.jit({given})" if given else f"{triton}.jit"
        return f"{made}({self._rebuilt(kernel.fn, hint, annotated=True)})"

    def _configuration(self, config: Any, hint: str) -> str:
        settings = ("num_warps", "num_stages", "num_ctas", "maxnreg", "pre_hook")
        more = {name: getattr(config, name, None) for name in settings}
        given = [f"{k}={self.expression(v, hint)}" for k, v in more.items() if v is not None]
        constants = ", ".join(f"{k!r}: {self.expression(v, k)}" for k, v in config.kwargs.items())
        return f"{self.imported('triton')}.Config({', '.join([f'{{{constants}}}', *given])})"

    def _given(
        self, used: set[str], held: Mapping[str, Any], live: Mapping[str, Any], filename: str
    ) -> list[tuple[str, str]]:
        """What a definition takes from around it, by name and expression: what is `held`; the rest is in its file."""
        given = []
        for name in sorted(used):
            if name in held:
                given.append((name, self.expression(held[name], name)))
            elif name in live:
                self.want(live, filename).names.add(name)
            elif not hasattr(builtins, name) and not name.startswith("__"):
                raise CannotEmbed(f"its definition uses {name!r}, a local variable that is gone by now.")
        return given

    def _made_by_a_function(self, body: list[str], given: list[tuple[str, str]]) -> str:
        """The name of what statements return in a function that is given names."""
        variable = f"_made_{len(self.tail)}"
        inner = textwrap.indent("\n".join(body), "    ")
        takes = ", ".join(name for name, _ in given)
        gets = ", ".join(text for _, text in given)
        self.tail.append(f"def _make{variable}({takes}):\n{inner}\n\n\n{variable} = _make{variable}({gets})")
        return variable

    def _rebuilt_class(self, cls: type, hint: str) -> str:
        """A class that was defined inside a function: its definition inside of a factory, as for functions."""
        methods = [each for each in vars(cls).values() if isinstance(each, types.FunctionType)]
        file = source_file(defined_in(cls))
        node = find_class(file, cls.__name__, {each.__code__.co_firstlineno for each in methods})
        live = methods[0].__globals__
        cells = {n: c for f in methods for n, c in zip(f.__code__.co_freevars, f.__closure__ or ())}
        used = names_used(node) - {cls.__name__}
        held = {base.__name__: base for base in cls.__bases__ if base.__name__ not in live}
        held |= {name: _content(cell, name) for name, cell in cells.items() if name in used}
        given = self._given(used, held, live, file.path)
        self.notes[f"{hint}: the class {cls.__name__} rebuilt from {os.path.basename(file.path)}"] = None
        return self._made_by_a_function([ast.unparse(node), f"return {cls.__name__}"], given)

    def _close(self, part: _Slice) -> None:
        """Brings a slice up to date with what is wanted of it, and asks other files for what it takes."""
        part.kept, missing = closed_slice(part.file, part.names, part.ops, part.live, self.by_text)
        used = part.names.union(*(s.uses for s in part.kept))
        for statement in part.kept:
            if isinstance(statement.node, ast.ImportFrom):
                self._import_from(part, statement, statement.node, used)
            elif isinstance(statement.node, ast.Import):
                names = statement.node.names
                wanted = [a for a in names if (a.asname or a.name.partition(".")[0]) in used] or names
                if len(wanted) < len(names):
                    text = f"import {', '.join(map(ast.unparse, wanted))}"
                    part.rewritten[part.file.statements.index(statement)] = text
                for alias in wanted:
                    self._by_path(sys.modules.get(alias.name))
                    self._needs(alias.name)
        for name in sorted(missing - part.given.keys() - part.given_late.keys()):
            if name in part.live and not self._from_another_file(part, name):
                simple = self.simple(part.live[name])
                late = self.expression(part.live[name], name) if simple is None else name
                (part.given_late if simple is None else part.given)[name] = simple or late

    def _import_from(self, part: _Slice, statement: Statement, node: ast.ImportFrom, used: set[str]) -> None:
        """`from m import a`: kept where `m` is installed; else `a` is sliced from the user's file of `m`."""
        package = str(part.live.get("__package__") or "")
        name = (
            importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            if node.level
            else node.module
        )
        module = sys.modules.get(name or "")
        if module is None or installed(module.__dict__):
            self._needs(name or "")
            return
        left = []
        for alias in node.names:
            bound = alias.asname or alias.name
            value = module.__dict__.get(alias.name)
            if alias.name == "*" or isinstance(value, types.ModuleType):
                left.append(ast.unparse(alias))
                self._by_path(module)
            elif bound in used:
                self.want(module.__dict__).names.add(alias.name)
                part.after.add(str(module.__file__))
                if bound != alias.name:
                    part.given[bound] = alias.name
        text = f"from {name} import {', '.join(left)}" if left else ""
        part.rewritten[part.file.statements.index(statement)] = text

    def _from_another_file(self, part: _Slice, name: str) -> bool:
        """Whether a name that no statement binds, as after `from m import *`, is top level in a file of the user's."""
        named = global_name(part.live[name])
        if named is None or named[0] is part.live or "." in named[1]:
            return False
        if installed(named[0]) or not named[0].get("__file__"):
            return False
        source = self.want(named[0])
        source.names.add(named[1])
        part.after.add(source.file.path)
        if named[1] != name:
            part.given[name] = named[1]
        return True

    def _by_path(self, module: types.ModuleType | None) -> None:
        """Lets the script import a module of the user's that is not pasted, from the folder it lies in."""
        path = getattr(module, "__file__", None)
        if module is None or not path or installed(module.__dict__):
            return
        ups = module.__name__.count(".") + (os.path.basename(path) == "__init__.py")
        folder = functools.reduce(lambda p, _: os.path.dirname(p), range(ups + 1), os.path.abspath(path))
        self.head["import sys"] = None
        self.head[f"sys.path.insert(0, {folder!r})"] = None
        self.notes[f"imports {module.__name__} from the folder it was written in, which must be there"] = None

    def imported(self, module: str) -> str:
        """The name of an installed module, which the script imports."""
        self._needs(module)
        self.imports[f"import {module}"] = None
        return module

    def _needs(self, module: str) -> None:
        package = sys.modules.get(module.partition(".")[0])
        if package is not None and third_party(package):
            self.notes[f"needs the package {package.__name__} to be installed"] = None

    def finish(self) -> Embedded:
        """The text, once nothing asks for more."""
        before: list[tuple[str, int, int]] = []
        while before != (now := [(p, len(s.names), len(s.ops)) for p, s in self.slices.items()]):
            before = now
            for part in list(self.slices.values()):
                self._close(part)
        _refuse_clashes(list(self.slices.values()), self.bound)
        blocks = ["\n".join(self.head)]
        late: dict[str, str] = {}
        for part in _in_order(self.slices):
            blocks += [f"{name} = {text}" for name, text in part.given.items() if name != text]
            places = {id(s): i for i, s in enumerate(part.file.statements)}
            blocks += [part.rewritten.get(places[id(s)], s.text) for s in part.kept]
            late.update(part.given_late)
            wanted = ", ".join(sorted(part.names | part.ops))
            self.notes[f"{wanted}: source from {os.path.basename(part.file.path)}"] = None
        late.update({name: expression for name, (_, expression) in self.bound.items()})
        blocks += [*self.tail, *(f"{name} = {text}" for name, text in late.items() if name != text)]
        return Embedded(_joined(blocks), tuple(self.imports), tuple(self.notes))


def _plain_signature(
    node: ast.FunctionDef | ast.Lambda,
    function: types.FunctionType,
    expression: Callable[[Any], str],
    annotated: bool = False,
) -> None:
    """Defaults become the values they had; annotations and decorators go: they may name locals that are gone.

    Those of a Triton kernel say what is constant, so they stay (`annotated`).

    The function at hand is the one the decorators were given, so nothing of it is lost.
    """
    parse = functools.partial(ast.parse, mode="eval")
    node.args.defaults = [parse(expression(v)).body for v in function.__defaults__ or ()]
    given = function.__kwdefaults__ or {}
    node.args.kw_defaults = [
        parse(expression(given[a.arg])).body if a.arg in given else None for a in node.args.kwonlyargs
    ]
    for argument in ast.walk(node.args):
        if isinstance(argument, ast.arg) and not annotated:
            argument.annotation = None
    if isinstance(node, ast.FunctionDef):
        node.returns = None
        node.decorator_list = []


def _content(cell: types.CellType, name: str) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        raise CannotEmbed(f"its free variable {name!r} has no value yet.") from None


def _refuse_clashes(slices: list[_Slice], bound: Mapping[str, tuple[object, str]]) -> None:
    owners: dict[str, _Slice] = {}
    for part in slices:
        for name in part.bound() - {"_"}:
            other = owners.setdefault(name, part)
            if other.live.get(name) is not part.live.get(name):
                files = " and ".join(os.path.basename(p.file.path) for p in (other, part))
                raise CannotEmbed(f"{files} both define {name!r}; give one of them another name.")
    for name, (value, expression) in bound.items():
        if name in owners and name != expression and owners[name].live.get(name) is not value:
            raise CannotEmbed(f"the program uses the name {name!r} for something else; rename that.")


def _in_order(slices: Mapping[str, _Slice]) -> list[_Slice]:
    """Each file after those it takes names from."""
    ordered: dict[str, _Slice] = {}

    def visit(path: str, above: tuple[str, ...]) -> None:
        if path in ordered or path in above:
            return
        for first in sorted(slices[path].after):
            visit(first, (*above, path))
        ordered[path] = slices[path]

    for path in slices:
        visit(path, ())
    return list(ordered.values())


def _joined(blocks: list[str]) -> str:
    """Statements as a person would set them: definitions apart, the rest line by line."""
    text = ""
    apart = False
    for block in filter(None, blocks):
        was_apart, apart = apart, re.match(r"@|def |class |async ", block) is not None
        text += ("\n\n\n" if apart or was_apart else "\n") + block
    return text.strip("\n") + "\n"
