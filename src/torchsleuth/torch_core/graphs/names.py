"""How a function, type or operator is spelled in printed source, checked by identity.

Everything that torch or the standard library holds is written with its dotted name, the public one where
there is one. What only the user's program holds becomes a *reference*: a bare name, handed to the reader
together with the object. A spelling is used only after it was resolved and gave back the very same object.
"""

import builtins
import functools
import keyword
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

from torchsleuth.torch_internals.operators import (
    comes_with_torch,
    custom_operator_name,
    is_operator,
    modules_by_preference,
    numpy_wrapper,
    operator_import,
    operator_path,
)

# Names the printed source gives a meaning to; a graph's variable must not hide them.
RESERVED = frozenset(
    {"self", "torch", "operator", "math", "inf", "nan", "constant", *dir(builtins), *keyword.kwlist}
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
        if path in dir(builtins) or root in _ALWAYS_IMPORTED:
            module = ".".join(path.split(".")[: _module_depth(path)])
            if module not in ("", *_ALWAYS_IMPORTED) and not comes_with_torch(module):
                self.imports[f"import {module}"] = None
            return path
        alias = root if root not in self.taken else self.fresh(root)
        module = ".".join(path.split(".")[: _module_depth(path)])
        if alias == root:
            self.imports[f"import {module}"] = None
            return path
        self.imports[f"import {module} as {alias}"] = None
        return alias + path.removeprefix(module)

    def _refer(self, thing: object) -> str | None:
        name = getattr(thing, "__name__", None)
        if not callable(thing) or not isinstance(name, str):
            return None
        name = self.fresh(name.strip("<>"))
        self.references[name] = thing
        return name


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
