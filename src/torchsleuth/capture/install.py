"""Puts the watch into a process: as soon as the compiler's modules are imported, and not before.

A program that never compiles anything pays for one entry in `sys.meta_path` and nothing else. torch itself
is never imported from here.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from torchsleuth.capture.settings import Settings, settings_from_environment

_watching = False


def watch_this_process(settings: Settings | None = None) -> None:
    """Watches every compile of this process from now on; does nothing where that is not asked for."""
    global _watching
    settings = settings or settings_from_environment()
    if settings is None or _watching:
        return
    _watching = True

    def dynamo_is_there(_module: ModuleType) -> None:
        from torchsleuth.capture import watch

        watch.watch_dynamo(settings)

    def inductor_is_there(_module: ModuleType) -> None:
        from torchsleuth.capture import watch

        watch.watch_inductor(settings)

    after_import("torch._dynamo", dynamo_is_there)
    after_import("torch._inductor.compile_fx", inductor_is_there)


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
