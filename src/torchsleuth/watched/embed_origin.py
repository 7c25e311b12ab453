"""Where a live value comes from: an installed package, a name in a file of the user's, or nowhere."""

import functools
import inspect
import os
import re
import sys
import sysconfig
import types
from collections.abc import Mapping
from typing import Any, TypeGuard

_STDLIB = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")


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
    path = os.path.abspath(str(path))
    return bool(_INSTALLED.search(path)) or path.startswith(_STDLIB)


def global_name(value: Any) -> tuple[Mapping[str, Any], str] | None:
    """The module namespace and dotted name under which a value can be had, if there is one."""
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

    >>> defined_in(defined_in).endswith("embed_origin.py")
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
