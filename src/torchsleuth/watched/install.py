"""Puts the watch into a process: as soon as the compiler's modules are imported, and not before.

A program that never compiles anything pays for one entry in `sys.meta_path` and nothing else. torch itself
is never imported from here.
"""

from __future__ import annotations

import functools
import os
import random
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torchsleuth.core.processes.sealed import write_aside
from torchsleuth.core.watching import OBSERVE_VARIABLE, Settings, settings_from_environment
from torchsleuth.torch_internals import module_names
from torchsleuth.watched.startup import after_import

_watching = False


def watch_this_process(
    settings: Settings | None = None, finish: Callable[[Any], object] = lambda flight: None
) -> None:
    """Watches every compile of this process from now on; does nothing where that is not asked for.

    `finish` makes cases at once, where nobody outside does so in the end.
    """
    global _watching
    if os.environ.get("TORCHSLEUTH_OVERRIDES"):
        # Before the watch, which then sees what comes of it.
        from torchsleuth.watched.apply_change import change_this_process

        change_this_process()
    settings = settings or settings_from_environment()
    if settings is None or _watching:
        return
    _watching = True
    if os.environ.get(OBSERVE_VARIABLE):
        from torchsleuth.watched.observe import observe_this_process

        observe_this_process(settings)
    if settings.again:  # what a program draws without a seed of its own is the same in each of them
        write_aside(settings.again.folders[-1])
        random.seed(0)
        after_import("numpy.random", lambda numpy: numpy.seed(0))
        after_import("torch", lambda torch: torch.manual_seed(0))
    if settings.watches_failures:
        _watch_for_failures(settings, functools.cache(lambda: _begin(settings, finish)))


def _begin(settings: Settings, finish: Callable[[Any], object]) -> Any:
    try:
        from torchsleuth.watched.watch import Watch

        return Watch(settings, finish=finish)
    except Exception as error:  # the user's program comes first
        sys.stderr.write(f"torchsleuth: not watching: {type(error).__name__}: {error}\n")
        return None


def _watch_for_failures(settings: Settings, begun: Callable[[], Any]) -> None:
    """torch's modules import each other in circles: while one of them is being imported nothing but a thin hook is
    put in, and the watch itself is imported and `begun` when the hook is first used."""

    def hand_on(handler: str, call: Any) -> Any:
        watch = begun()
        return call.as_without_us() if watch is None else getattr(watch, handler)(call)

    def hook(name: str, seam: str, handler: str) -> None:
        def put_in(_module: ModuleType) -> None:
            from torchsleuth.torch_internals import frames, hooks, saved_code

            hooks.require_supported_torch()
            put = next(getattr(room, seam) for room in (hooks, frames, saved_code) if hasattr(room, seam))
            put(functools.partial(hand_on, handler))

        after_import(name, put_in)

    def route_overrides(_module: ModuleType) -> None:
        from torchsleuth.torch_internals.hooks import route_backend_overrides

        route_backend_overrides()

    def forget_graphs(_module: ModuleType) -> None:
        from torchsleuth.torch_internals.saved_code import forget_cached_graphs

        forget_cached_graphs()

    def remember_decompositions(_module: ModuleType) -> None:
        from torchsleuth.torch_internals.decompositions import remember_table

        remember_table()

    def watch_calls(_module: ModuleType) -> None:
        from torchsleuth.torch_internals.compiled_calls import hook_compiled_calls

        in_eager = settings.again is not None and settings.again.in_eager
        hook_compiled_calls(lambda call: None if begun() is None else begun().on_call(call), in_eager)

    hook(module_names.FRAME_CAPTURE, "hook_frame_captures", "on_frame")
    hook(module_names.FRAME_CAPTURE, "hook_frame_compiles", "on_frame_compile")
    hook(module_names.BACKEND_CALL, "hook_backend_calls", "on_backend")
    hook(module_names.INNER_COMPILE, "hook_inner_compiles", "on_inner")
    after_import(module_names.CAPTURED_GRAPH, route_overrides)
    after_import(module_names.GRAPH_CACHE, forget_graphs)
    after_import(module_names.DECOMPOSITIONS, remember_decompositions)
    hook(module_names.PACKAGES, "hook_packages", "on_saved_code")
    hook(module_names.BUNDLES, "hook_bundles", "on_saved_code")
    hook(module_names.PRECOMPILED, "hook_precompiled", "on_saved_code")
    hook(module_names.CUDA_GRAPHS, "hook_cuda_graphs", "on_cuda_graph")
    if settings.checks_accuracy:
        after_import(module_names.COMPILED_CALL, watch_calls)
