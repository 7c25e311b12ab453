"""How functions, types, operators and argument values are spelled in printed source: exactly, or not at all.

Everything that torch or the standard library holds is written with its dotted name, the public one where there is one.
What only the user's program holds becomes a *reference*: a bare name, handed to the reader together with the object. A
spelling is used only after it was resolved and gave back the very same object. A value is written in a form that
evaluates to an equal value of the same type, or refused by `Unprintable` with the reason.
"""

import builtins
import enum
import functools
import keyword
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx.immutable_collections import immutable_dict, immutable_list

from torchsleuth.torch_internals.operators import (
    comes_with_torch,
    custom_operator_name,
    is_operator,
    modules_by_preference,
    numpy_wrapper,
    operator_import,
    operator_path,
    triton_launch,
    triton_value,
    writable_treespec,
)

# Names the printed source gives a meaning to; a graph's variable must not hide them.
RESERVED = frozenset(
    {"self", "torch", "operator", "math", "inf", "nan", "constant", "kernel_side_table"}
    | {*dir(builtins), *keyword.kwlist}
)
_ALWAYS_IMPORTED = ("torch", "operator", "math")


@dataclass
class Vocabulary:
    """The names one printed source uses beyond its own variables."""

    taken: set[str]
    imports: dict[str, None] = field(default_factory=dict)
    references: dict[str, object] = field(default_factory=dict)
    custom_ops: dict[str, None] = field(default_factory=dict)
    _spelled: dict[int, tuple[object, str]] = field(default_factory=dict)

    def spell(self, thing: object) -> str | None:
        """The expression for a callable, type or operator; None where it has no name at all.

        >>> Vocabulary(set()).spell(torch.relu)
        'torch.relu'
        """
        known = self._spelled.get(id(thing))
        if known is None:
            text = self._spell_anew(thing)
            if text is None:
                return None
            known = self._spelled[id(thing)] = (thing, text)
        return known[1]

    def refer(self, thing: object, name: str) -> str:
        """A name of its own for what only the user's program holds: `words.refer(add_kernel, "add_kernel")`."""
        if id(thing) not in self._spelled:
            name = self.fresh(name)
            self.references[name] = thing
            self._spelled[id(thing)] = (thing, name)
        return self._spelled[id(thing)][1]

    def fresh(self, wanted: str) -> str:
        """A name close to the wanted one that nothing else in the source has.

        >>> Vocabulary({"relu"}).fresh("relu")
        'relu_1'
        """
        name = unused_name(wanted, self.taken)
        self.taken.add(name)
        return name

    def _spell_anew(self, thing: object) -> str | None:
        if is_operator(thing):
            return self._spell_operator(thing)
        wrapper = numpy_wrapper(thing)
        if wrapper is None:
            return self._spell_function(thing)
        inner = repr(wrapper[1]) if isinstance(wrapper[1], str) else self.spell(wrapper[1])
        self.imports["import torch._dynamo.utils"] = None
        return None if inner is None else f"{wrapper[0]}({inner})"

    def _spell_operator(self, target: object) -> str | None:
        custom = custom_operator_name(target)
        if custom is not None:
            self.custom_ops[custom] = None
        path = operator_path(target)
        if resolve(path) is not target:
            return self._refer(target)
        module = operator_import(target)
        if module is not None:
            self.imports[f"import {module}"] = None
        return path

    def _spell_function(self, thing: object) -> str | None:
        path = _library_path(thing)
        if path is None:
            return self._refer(thing)
        root = path.partition(".")[0]
        module = ".".join(path.split(".")[: _module_depth(path)])
        if path in dir(builtins) or root in _ALWAYS_IMPORTED:
            if module not in ("", *_ALWAYS_IMPORTED) and not comes_with_torch(module):
                self.imports[f"import {module}"] = None
            return path
        if root not in self.taken:
            self.imports[f"import {module}"] = None
            return path
        alias = self.fresh(root)
        self.imports[f"import {module} as {alias}"] = None
        return alias + path.removeprefix(module)

    def _refer(self, thing: object) -> str | None:
        name = getattr(thing, "__name__", None)
        if not callable(thing) or not isinstance(name, str):
            return None
        return self.refer(thing, name.strip("<>"))


def unused_name(wanted: str, taken: Iterable[str]) -> str:
    """The wanted name as an identifier, numbered if it is reserved or taken.

    >>> unused_name("a-b", ())
    'a_b'
    """
    stem = "".join(c if c.isalnum() or c == "_" else "_" for c in wanted) or "_"
    stem = f"_{stem}" if stem[0].isdigit() else stem
    stem = stem if stem.isidentifier() else "value"
    name, number = stem, 0
    while name in taken or name in RESERVED:
        number += 1
        name = f"{stem}_{number}"
    return name


def resolve(path: str) -> object | None:
    """What a dotted name stands for in this process, or None.

    >>> resolve("torch.nn.functional.gelu") is torch.nn.functional.gelu
    True
    """
    parts = path.split(".")
    depth = _module_depth(path)
    found: object | None = sys.modules.get(".".join(parts[:depth])) if depth else builtins
    for part in parts[depth:]:
        try:
            found = getattr(found, part)
        except Exception:  # torch.ops raises several kinds for an operator that is not there
            return None
    return found


def _module_depth(path: str) -> int:
    """How many leading parts of a dotted name are a loaded module."""
    parts = path.split(".")
    depth = 0
    while depth < len(parts) - 1 and ".".join(parts[: depth + 1]) in sys.modules:
        depth += 1
    return depth


def _library_path(thing: object) -> str | None:
    known = _public_names(len(sys.modules)).get(id(thing))
    if known is not None and resolve(known) is thing:
        return known
    module = getattr(thing, "__module__", None)
    qualname = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", None)
    if not isinstance(module, str) or not isinstance(qualname, str) or "<" in qualname:
        return _equal_public_name(thing)
    root = module.partition(".")[0]
    if root not in ("torch", "functorch") and root not in sys.stdlib_module_names:
        return None
    if root == "__main__" or not all(part.isidentifier() for part in qualname.split(".")):
        return None
    path = qualname if module == "builtins" else f"{module}.{qualname}"
    return path if resolve(path) is thing else _equal_public_name(thing)


def _equal_public_name(thing: object) -> str | None:
    """C methods of a class give a new, equal object at each access; the stored public one stands for all."""
    name = getattr(thing, "__name__", None)
    if not isinstance(name, str) or not isinstance(thing, type(len)):
        return None
    for module in modules_by_preference():
        if vars(sys.modules[module]).get(name) == thing:
            return f"{module}.{name}"
    return None


# Keyed by the number of loaded modules, so that C modules loaded later are found too.
@functools.lru_cache(maxsize=2)
def _public_names(loaded: int) -> dict[int, str]:
    names: dict[int, str] = {}
    for module in modules_by_preference():
        # A copy: torch fills some of these when they are first looked at, and other threads import.
        for name, thing in list(vars(sys.modules[module]).items()):
            plain = name.isidentifier() and not (name.startswith("_") and module in ("torch", "operator"))
            if plain and callable(thing) and not is_operator(thing):
                names.setdefault(id(thing), f"{module}.{name}")
    for name, thing in list(vars(builtins).items()):
        if callable(thing):
            names[id(thing)] = name
    return names


class Unprintable(Exception):
    """A graph holds something that Python source cannot express: what, in one plain sentence."""


def expression(value: object, variables: Mapping[torch.fx.Node, str], words: Vocabulary) -> str:
    """The source of one argument.

    >>> expression((1, -0.0, None), {}, Vocabulary(set()))
    '(1, -0.0, None)'
    """
    if isinstance(value, torch.fx.Node):
        return variables[value]
    write: _Write = lambda item: expression(item, variables, words)  # noqa: E731
    text = _of_known_type(value, write)
    if text is None:
        text = _by_kind(value, write, words)
    if text is None:
        raise Unprintable(_refusal(value))
    return text


def keywords(
    node: torch.fx.Node, variables: Mapping[torch.fx.Node, str], words: Vocabulary
) -> dict[str, str]:
    """The keyword arguments of a call as source; a Triton kernel and its constants by what their numbers stand for.

    For a call with `dim=0` they are `{"dim": "0"}`.
    """
    written = {name: expression(value, variables, words) for name, value in node.kwargs.items()}
    try:
        launch = triton_launch(node.target, node.kwargs)
    except LookupError as missing:
        raise Unprintable(
            f"it calls the user's Triton kernel {missing}, which this process does not know"
        ) from None
    if launch is not None:
        kernel = words.refer(launch.kernel, launch.name)
        constants = expression(dict(launch.constants), variables, words)
        written["kernel_idx"] = f"kernel_side_table.add_kernel({kernel})"
        written["constant_args_idx"] = f"kernel_side_table.add_constant_args({constants})"
    return written


def subscript(index: object, write: Callable[[object], str]) -> str:
    """What stands between the brackets of `x[...]`: slices and bare tuples as people write them.

    >>> subscript((slice(None), 0), repr)
    ':, 0'
    """
    if type(index) is tuple and index:
        return ", ".join(_subscript_item(item, write) for item in index) + ("," if len(index) == 1 else "")
    return _subscript_item(index, write)


def _subscript_item(item: object, write: Callable[[object], str]) -> str:
    if not isinstance(item, slice):
        return write(item)
    start, stop, step = ("" if part is None else write(part) for part in (item.start, item.stop, item.step))
    return f"{start}:{stop}:{step}" if step else f"{start}:{stop}"


_Write = Callable[[object], str]
_SHOWN_AS_THEY_ARE = {
    *(type(None), bool, int, str, bytes, range, type(NotImplemented)),
    *(torch.dtype, torch.layout, torch.memory_format, torch.qscheme),
}


def _of_known_type(value: Any, write: _Write) -> str | None:
    """A value of one of the types that are written in a form of their own, which their subclasses are not."""
    kind = type(value)
    if kind in _SHOWN_AS_THEY_ARE:
        return repr(value)
    if kind is tuple:
        return f"({write(value[0])},)" if len(value) == 1 else f"({', '.join(map(write, value))})"
    if kind in (list, immutable_list):
        return f"[{', '.join(map(write, value))}]"
    if kind in (dict, immutable_dict):
        return "{" + ", ".join(f"{write(key)}: {write(item)}" for key, item in value.items()) + "}"
    if kind is float:
        return "nan" if math.isnan(value) else repr(value)
    if kind is complex:
        return f"complex({write(value.real)}, {write(value.imag)})"
    if kind is slice:
        return f"slice({write(value.start)}, {write(value.stop)}, {write(value.step)})"
    if kind is torch.device:
        return f"torch.device({str(value)!r})"
    if kind is torch.Size:
        return f"torch.Size({write(list(value))})"
    if kind in (torch.finfo, torch.iinfo):
        return f"torch.{kind.__name__}(torch.{value.dtype})"
    return "..." if value is Ellipsis else None


def _by_kind(value: object, write: _Write, words: Vocabulary) -> str | None:
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return _constant_symbol(value)
    if isinstance(value, type):
        return words.spell(value)
    if isinstance(value, enum.Enum) or hasattr(type(value), "__members__"):
        return _enum(value, words)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        made_by = words.spell(type(value))
        return None if made_by is None else f"{made_by}({', '.join(map(write, value))})"
    if isinstance(value, set | frozenset) and type(value) in (set, frozenset):
        return f"{type(value).__name__}({write(sorted(value, key=repr))})"
    treespec = writable_treespec(value)
    if treespec is not None:
        words.imports["import torch.utils._pytree"] = None
        return treespec
    known = triton_value(value)
    if known is not None:
        words.imports["import triton.language"] = None
        name, inner = known
        return f"triton.language.{name}" if inner is None else f"triton.language.{name}({write(inner[0])})"
    if callable(value) and not isinstance(value, torch.nn.Module | torch.Tensor):
        return words.spell(value)
    return None


def _enum(value: object, words: Vocabulary) -> str | None:
    name = getattr(value, "name", None)
    owner = words.spell(type(value))
    if owner is None or not isinstance(name, str) or not hasattr(type(value), name):
        return None
    found = resolve(f"{owner}.{name}") if owner not in words.references else getattr(type(value), name)
    return f"{owner}.{name}" if found == value else None


def _constant_symbol(value: Any) -> str | None:
    """A symbolic number that is in truth a constant may be written; any other would lose its symbol."""
    asked = {torch.SymInt: "maybe_as_int", torch.SymFloat: "maybe_as_float", torch.SymBool: "maybe_as_bool"}
    known = getattr(value.node, asked[type(value)])()
    return None if known is None else _of_known_type(known, repr)


def _refusal(value: object) -> str:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return f"the symbolic number {value} stands in its arguments without a node that computes it"
    if isinstance(value, torch.Generator):
        return "a torch.Generator stands in its arguments, whose state Python source cannot hold"
    if isinstance(value, torch.Tensor):
        return "a tensor stands in its arguments; graphs hold tensors as attributes"
    return f"a value of type {kind} stands in its arguments, which Python source cannot hold"
