"""What our work in the user's process stands on: where the program was started, when a module has been imported, no
warnings of ours, and what stands in the place of a function of the program's.

It stands on the standard library, so that it is there before torch.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

from torchsleuth.script_runtime.hiding import hide_in_words

_STANDARD = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")

# The folder the program was started in; None where that is gone. It may change to another later.
try:
    started_in: str | None = os.getcwd()
except OSError:
    started_in = None


def how_started() -> dict[str, Any]:
    """How to start the program again, for what is tried on the whole of it."""
    return {"command": hide_in_words(sys.orig_argv), "cwd": started_in}


def is_installed(file: str) -> bool:
    """Whether a file is a library's, Python's own included.

    >>> is_installed(os.__file__)
    True
    """
    return bool(_INSTALLED.search(file)) or file.startswith(_STANDARD)


def after_import(name: str, then: Callable[[ModuleType], None]) -> None:
    """Calls `then(module)` once the module `name` has been imported, at once if it is there already."""
    module = sys.modules.get(name)
    if module is not None:
        then(module)
    else:
        sys.meta_path.insert(0, _Announcer(name, then))


class _Announcer(importlib.abc.MetaPathFinder):
    """Finds one module the way everyone else would, and speaks up after it has been executed."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self.name = name
        self.then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return spec
        execute = spec.loader.exec_module

        def execute_and_tell(module: ModuleType) -> Any:
            result = execute(module)
            try:
                self.then(module)
            except Exception as error:  # the user's program comes first
                known = type(error).__name__ == "UnsupportedTorch"  # it says what is not watched
                what = "" if known else f"not watching {self.name}: {type(error).__name__}: "
                sys.stderr.write(f"torchsleuth: {what}{error}\n")
            return result

        spec.loader.exec_module = execute_and_tell  # type: ignore[method-assign]
        return spec


def standing_for(call: Callable[..., Any], compiled: Callable[..., Any]) -> Callable[..., Any]:
    """`call` with all that torch reads from a backend's result and must find on ours, too."""
    # Plain methods carry no dict.
    updated = ("__dict__",) if hasattr(compiled, "__dict__") else ()
    return functools.update_wrapper(call, compiled, updated=updated)


_SILENCE: Any = ("ignore", None, Warning, None, 0)


@contextlib.contextmanager
def unwarned() -> Iterator[None]:
    """No warning is shown inside, and none that the program gives afterwards is shown once more or once less.

    `warnings.catch_warnings` makes Python forget which warnings it has shown already, and a warning that is caught
    would count as shown: the filter is put in without telling.

    >>> with unwarned():
    ...     warnings.warn("nobody hears this")
    """
    filters: Any = warnings.filters
    filters.insert(0, _SILENCE)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            filters.remove(_SILENCE)
