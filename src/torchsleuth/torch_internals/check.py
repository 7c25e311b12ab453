"""Asks this torch whether everything torchsleuth rests on is there: `python -m torchsleuth.torch_internals.check`.

Puts every hook in and tries the device. With the argument `names`: which private names of torch this room rests on,
read from its own source, and which of them this torch lacks. Private is what has a part with an underscore in front,
and what torch documents nowhere. Attributes of objects that torch hands out at run time are not seen here; modules,
functions, classes and their members are, also where they are named in strings: for `import_module`, `getattr` and
`setattr`, and in tables of what is patched.

Prints one JSON line. Run in a process of its own, because a broken torch takes its process down.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import json
import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from torchsleuth.torch_internals import module_names

ROOM = Path(__file__).parent
_MODULE = re.compile(r"(?:torch|functorch)(?:\.\w+)+")
# What older releases that we know lack, and nothing of ours needs there.
CAME_WITH = {
    "torch._dynamo.variables.memory": (2, 14),
    "torch._higher_order_ops.flex_gemm": (2, 14),
    "torch._precompile": (2, 14),
    "torch._precompile._runnable_from_pair": (2, 15),
}
_UNDOCUMENTED = ("torch.fx.experimental.", "torch.fx.passes.", "functorch.")


@dataclass(frozen=True)
class Use:
    """A line of ours that rests on a name, and what its file is there for."""

    file: str
    line: int
    purpose: str
    # What its file says of releases that lack something.
    instead: str = ""


@dataclass(frozen=True)
class Missing:
    """A name that this torch lacks, and what of ours rests on it."""

    name: str
    used_by: tuple[Use, ...]


def is_private(name: str) -> bool:
    """Whether torch may take a name away without notice.

    >>> is_private("torch._dynamo.utils.counters"), is_private("torch.fx.Graph"), is_private("torch.__version__")
    (True, False, False)
    """
    parts = name.split(".")
    hidden = any(part.startswith("_") and not part.startswith("__") for part in parts)
    return parts[0] in ("torch", "functorch") and (hidden or name.startswith(_UNDOCUMENTED))


def names_used(room: Path = ROOM) -> dict[str, tuple[Use, ...]]:
    """Every private name of torch in the source of this room: `names_used()["torch._guards.CompileContext"]`."""
    found: dict[str, tuple[Use, ...]] = {}
    for file in sorted(room.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        about = [part.replace("\n", " ") for part in (ast.get_docstring(tree) or "").split("\n\n")]
        instead = next((part.partition("Versions: ")[2] for part in about if "Versions: " in part), "")
        lines: dict[str, int] = {}
        for name, line in names_in(tree):
            lines.setdefault(name, line)
        for name, line in lines.items():
            use = Use(file.relative_to(room).as_posix(), line, purpose=about[0], instead=instead)
            found[name] = (*found.get(name, ()), use)
    return dict(sorted(found.items()))


def names_in(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The private names of torch in one file, with their lines; of a chain of attributes the longest.

    >>> list(names_in(ast.parse("from torch._dynamo import utils\\nutils.counters.clear()")))
    [('torch._dynamo.utils', 1), ('torch._dynamo.utils.counters.clear', 2)]
    """
    reader = _Reader()
    reader.visit(tree)
    return ((name, line) for name, line in reader.found if is_private(name))


class _Reader(ast.NodeVisitor):
    """Follows what stands for a name of torch, or for a text, from assignment to use; in the order of the source."""

    def __init__(self) -> None:
        self.found: list[tuple[str, int]] = []
        self._names: dict[str, tuple[str, ...]] = {}
        self._texts: dict[str, tuple[str, ...]] = {}

    def _note(self, node: ast.AST, names: Sequence[str]) -> None:
        self.found += [(name, getattr(node, "lineno", 0)) for name in names]

    def texts(self, node: ast.AST | None) -> tuple[str, ...]:
        """The texts that an expression may stand for."""
        match node:
            case ast.Constant(value=str(text)):
                return (text,)
            case ast.Name(id=name):
                return self._texts.get(name, ())
            case ast.Attribute(value=ast.Name(id="module_names"), attr=name):
                return (str(getattr(module_names, name)),)
            case ast.JoinedStr(values=parts):
                inner = [self.texts(p.value if isinstance(p, ast.FormattedValue) else p) for p in parts]
                return tuple("".join(each) for each in product(*inner))
            case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
                return tuple(text for each in elements for text in self.texts(each))
        return ()

    def names(self, node: ast.AST | None) -> tuple[str, ...]:
        """The names of torch that an expression may stand for."""
        match node:
            case ast.Name(id=name):
                return self._names.get(name, ())
            case ast.Attribute(value=inner, attr=name):
                return tuple(f"{each}.{name}" for each in self.names(inner))
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[module, *_]):
                return tuple(text for text in self.texts(module) if _MODULE.fullmatch(text))
            case ast.Call(func=ast.Name(id="getattr" | "hasattr" | "setattr"), args=[inner, name, *_]):
                return tuple(f"{n}.{text}" for n in self.names(inner) for text in self.texts(name))
            case ast.Call(func=ast.Name(id="replaced"), args=args):
                return tuple(".".join(filter(None, row)) for row in product(*map(self.texts, args[:3])))
            case ast.IfExp(body=one, orelse=other):
                return self.names(one) + self.names(other)
        return ()

    def visit_Import(self, node: ast.Import) -> None:
        for each in node.names:
            self._names[each.asname or each.name.partition(".")[0]] = (
                each.name if each.asname else each.name.partition(".")[0],
            )
            self._note(node, [each.name])

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for each in node.names:
            name = f"{node.module}.{each.name}"
            self._names[each.asname or each.name] = (name,)
            self._note(node, [name])

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """What is bound in a function is bound there alone, and hides what has its name outside."""
        outside = dict(self._names), dict(self._texts)
        for argument in ast.walk(node.args):
            if isinstance(argument, ast.arg):
                self._bind(ast.Name(argument.arg), None)
        self.generic_visit(node)
        self._names, self._texts = outside

    def visit_Assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        self.generic_visit(node)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            self._bind(target, node.value)

    visit_AnnAssign = visit_Assign

    def visit_For(self, node: ast.For) -> None:
        self._go_through([node], [*node.body, *node.orelse])

    def _comprehension(self, node: Any) -> None:
        parts = [getattr(node, part, None) for part in ("elt", "key", "value")]
        self._go_through(node.generators, [part for part in parts if part is not None])

    visit_GeneratorExp = visit_ListComp = visit_SetComp = visit_DictComp = _comprehension

    def _go_through(self, loops: Sequence[ast.comprehension | ast.For], inside: Sequence[ast.AST]) -> None:
        """What is inside of loops, for each value that is written there; else what is gone through stands for each."""
        if not loops:
            for each in inside:
                self.visit(each)
            return
        first, *others = loops
        self.visit(first.iter)
        for value in first.iter.elts if isinstance(first.iter, (ast.Tuple, ast.List)) else [first.iter]:
            self._bind(first.target, value)
            self._go_through(others, [*getattr(first, "ifs", ()), *inside])

    def _bind(self, target: ast.AST, value: ast.AST | None) -> None:
        if isinstance(target, ast.Tuple):  # `a, b = x, y`
            parts = value.elts if isinstance(value, ast.Tuple) else [None] * len(target.elts)
            for each, part in zip(target.elts, parts):
                self._bind(each, part)
        elif isinstance(target, ast.Name):
            self._names[target.id] = self.names(value)
            self._texts[target.id] = self.texts(value)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        names = self.names(node)
        self._note(node, names)
        if not names:
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        self._note(node, self.names(node))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and _MODULE.fullmatch(node.value):
            self._note(node, [node.value])

    def visit_Tuple(self, node: ast.Tuple) -> None:
        """A row of a table of what is patched: a module, a class or nothing, a name."""
        module, *rest = (self.texts(each) for each in node.elts) if node.elts else ((),)
        parts = []
        for each in rest:
            if len(each) != 1 or not (each[0].isidentifier() or each[0] == "") or each[0] == "__main__":
                break
            parts += [each[0]] if each[0] else []
        if len(module) == 1 and _MODULE.fullmatch(module[0]) and parts:
            self._note(node, [".".join([module[0], *parts])])
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        """A table by module: what is needed of it, or its settings."""
        for key, value in zip(node.keys, node.values):
            for module in self.texts(key):
                if _MODULE.fullmatch(module):
                    self._note(node, [f"{module}.{inner}" for inner in self._members(value)])
        self.generic_visit(node)

    def _members(self, value: ast.AST) -> list[str]:
        if not isinstance(value, ast.Dict):
            return [text for text in self.texts(value) if text.isidentifier()]
        found = []
        for key, inner in zip(value.keys, value.values):
            for name in self.texts(key):
                members = self.texts(inner) if isinstance(inner, ast.Tuple) else ()
                found += [f"{name}.{member}" for member in members] or [name]
        return found


def missing_of(names: Mapping[str, tuple[Use, ...]]) -> tuple[Missing, ...]:
    """Those of the names that this torch lacks: `missing_of(names_used())` is empty where all is well."""
    from torchsleuth.torch_internals.hooks import torch_release

    expected = {name: uses for name, uses in names.items() if CAME_WITH.get(name, (0,)) <= torch_release()}
    return tuple(Missing(name, uses) for name, uses in expected.items() if not is_there(name))


def is_there(name: str) -> bool:
    """Whether this torch has a name; below an object that is neither module nor class nothing is asked.

    >>> is_there("torch._dynamo.utils.counters"), is_there("torch._dynamo.utils.no_such_thing")
    (True, False)
    """
    module, *rest = name.split(".")
    found: Any = importlib.import_module(module)
    for part in rest:
        module = f"{module}.{part}"
        if not isinstance(found, types.ModuleType) and not inspect.isclass(found):
            return True
        if inspect.isclass(found) and part in getattr(found, "__annotations__", {}):
            return True
        if not hasattr(found, part):
            if not isinstance(found, types.ModuleType) or not _has_module(module):
                return False
            try:
                importlib.import_module(module)
            except Exception:  # it is there, and needs something else that is not
                return True
        found = getattr(found, part, None) or sys.modules.get(module)
    return True


def _has_module(name: str) -> bool:
    with contextlib.suppress(ImportError, ValueError):
        return importlib.util.find_spec(name) is not None
    return False


def print_names() -> None:
    """Prints how many names there are and which of them are missing."""
    import torch

    names = names_used()
    answer = {
        "torch": torch.__version__,
        "names": len(names),
        "missing": [asdict(each) for each in missing_of(names)],
    }
    sys.stdout.write(json.dumps(answer) + "\n")


def print_torch() -> None:
    """Puts every hook in and takes it out again; tries the device."""
    import torch._dynamo
    import torch._inductor.compile_fx

    from torchsleuth.torch_internals import hooks
    from torchsleuth.torch_internals.places import UnsupportedTorch

    unwatched = []
    for hook, through in (
        (hooks.hook_backend_calls, lambda call: call.compile(call.graph, call.inputs)),
        (hooks.hook_inner_compiles, lambda call: call.compile(call.graph, call.inputs)),
        (hooks.hook_frame_captures, lambda frame: frame.as_without_us()),
    ):
        try:
            hook(through)()
        except UnsupportedTorch as why:
            unwatched.append(str(why).partition(";")[0])
    answer = {
        "torch": torch.__version__,
        "unwatched": unwatched,
        "built_for": torch.version.cuda or torch.version.hip,
        **_device(torch),
        "triton": _triton(),
        "backends": sorted(torch._dynamo.list_backends(exclude_tags=())),
        "modes": sorted(torch._inductor.list_mode_options()),
    }
    sys.stdout.write(json.dumps(answer) + "\n")


def _device(torch: Any) -> dict[str, str | None]:
    """Its name once a kernel has run on it, or why that failed."""
    if not torch.cuda.is_available():
        return {"device": None, "device_error": None}
    try:
        torch.ones(8, device="cuda").sum().item()
        return {"device": torch.cuda.get_device_name(), "device_error": None}
    except Exception as error:
        return {"device": None, "device_error": (str(error).splitlines() or [type(error).__name__])[0]}


def _triton() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return None
    try:
        import triton

        return str(triton.__version__)
    except Exception as error:
        return f"broken: {type(error).__name__}: {error}"


def main(arguments: Sequence[str]) -> None:
    """Answers what is asked for on the command line."""
    print_names() if arguments == ["names"] else print_torch()


if __name__ == "__main__":
    main(sys.argv[1:])
