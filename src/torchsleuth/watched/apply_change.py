"""Puts a `Change` in place in the process of the user's program, as the parts of the compiler that it is about arrive.

What cannot be put in place ends the program: a run without it would be taken for a run with it. Without the variable of
`core/changes.py` nothing here is ever imported.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torchsleuth.core.changes import Change, change_from_environment
from torchsleuth.torch_internals import module_names
from torchsleuth.watched.startup import after_import


@functools.cache
def change_this_process() -> None:
    """Puts in place what the environment asks for, as the parts of the compiler are imported."""
    with _or_end():
        wanted = change_from_environment()
        if wanted is not None:
            _put_in_place(wanted)


class _or_end:
    """Ends the process where an override cannot be put in place."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            sys.stderr.write(f"torchsleuth: cannot override: {type(error).__name__}: {error}\n")
            raise SystemExit(2) from error


def _put_in_place(wanted: Change) -> None:
    settings: dict[str, dict[str, Any]] = {
        module: {key: ast.literal_eval(text) for key, text in values.items()}
        for module, values in wanted.config.items()
    }

    decomposed, lowered = (
        wanted.off.get(each, {}).get("names", ()) for each in ("decomposition", "lowerings")
    )
    # What is not decomposed any more has no lowering, either, and needs no other word to stay eager.
    kept_eager = [name for name in lowered if name not in decomposed]

    def at_capture(_module: ModuleType) -> None:
        from torchsleuth.torch_internals import compile_overrides as eager
        from torchsleuth.torch_internals import compile_overrides as forced

        if wanted.dynamic is not None:
            settings.setdefault(forced.DYNAMO, {}).update(forced.settings_for_dynamic(wanted.dynamic))
        if settings:
            forced.force_at_captures(settings)
        if wanted.snippet:
            forced.run_before_captures(wanted.snippet)
        if wanted.dynamic_dims:
            forced.mark_dimensions(wanted.dynamic_dims)
        if wanted.functions:
            eager.leave_functions_eager(wanted.functions)
        if wanted.traced:
            eager.trace_functions_whole(wanted.traced)
        if wanted.modules or wanted.classes:
            eager.leave_modules_eager(wanted.modules, wanted.classes)

    def at_backend(_module: ModuleType) -> None:
        from torchsleuth.torch_internals import compile_overrides as forced

        if settings:
            forced.force_at_backend_calls(settings)

    def at_inductor(_module: ModuleType) -> None:
        from torchsleuth.torch_internals import compile_overrides as eager
        from torchsleuth.torch_internals import compile_overrides as forced

        forced.check_settings(settings)
        if settings:
            forced.force_at_inner_compiles(settings)
        eager.forget_decompositions(decomposed)

    def at_lowering(_module: ModuleType) -> None:
        from torchsleuth.torch_internals import compile_overrides as eager

        eager.keep_operators_eager(kept_eager)

    def at_dynamo(_module: ModuleType) -> None:
        from torchsleuth.torch_internals import compile_overrides as forced

        forced.ignore_dynamic_marks()

    def compile_nothing(_module: ModuleType) -> None:
        from torchsleuth.torch_internals import compile_overrides as forced

        forced.compile_nothing()

    def choose_backend(_module: ModuleType) -> None:
        from torchsleuth.torch_internals import compile_overrides as forced

        forced.compile_with(wanted.backend, wanted.mode)

    def break_graphs(_module: ModuleType) -> None:
        from torchsleuth.torch_internals import compile_overrides as forced

        forced.force_fullgraph(wanted.fullgraph)

    def rewrite(_module: ModuleType) -> None:
        from torchsleuth.torch_internals.compiled_calls import hook_compiled_calls
        from torchsleuth.watched import rewritten

        hook_compiled_calls(rewritten.before_calls(wanted.rewritten))

    if wanted.uncompiled:
        _when(module_names.DYNAMO, compile_nothing)
    if wanted.backend or wanted.mode:
        _when(module_names.DYNAMO, choose_backend)
    if wanted.dtype:
        _when(module_names.TORCH, functools.partial(_compute_in, wanted.dtype))
    if wanted.graph_breaks or wanted.fullgraph:
        _when(module_names.DYNAMO, break_graphs)
    if wanted.rewritten:
        _when(module_names.COMPILED_CALL, rewrite)
    if wanted.dynamic is False:
        _when(module_names.DYNAMO, at_dynamo)
    _when(module_names.FRAME_CAPTURE, at_capture)
    _when(module_names.BACKEND_CALL, at_backend)
    _when(module_names.INNER_COMPILE, at_inductor)
    if kept_eager:
        _when(module_names.LOWERING, at_lowering)


def _compute_in(name: str, torch: Any) -> None:
    """Has the program compute in that dtype where it does not say another itself."""
    dtype = getattr(torch, name)
    if dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        return
    # Its cache of cast weights is emptied at the end of a region, which never comes here.
    torch.set_autocast_cache_enabled(False)
    for device in ("cpu", "cuda"):
        torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_enabled(device, True)


def _when(name: str, then: Callable[[ModuleType], None]) -> None:
    def put_in(module: ModuleType) -> None:
        with _or_end():
            then(module)

    after_import(name, put_in)
