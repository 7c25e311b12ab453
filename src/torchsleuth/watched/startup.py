"""What the watch knows before torch is there: where the program was started, and when a module has been imported.

Everything in this room may stand on it; it stands on the standard library alone.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

# The folder the program was started in; None where that is gone. It may change to another later.
try:
    started_in: str | None = os.getcwd()
except OSError:
    started_in = None


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
                sys.stderr.write(f"torchsleuth: not watching: {type(error).__name__}: {error}\n")
            return result

        spec.loader.exec_module = execute_and_tell  # type: ignore[method-assign]
        return spec
