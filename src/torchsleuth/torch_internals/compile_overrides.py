"""A program's compiles under other settings or another backend, without a change to the program.

Settings are put in force at every place a compile passes, because the program, or options= of its torch.compile, may
set them in between; the backward that is compiled later passes the last of them by itself.

Versions: the places are those of `hooks.py` (2.11..2.15); a setting that a version lacks is an error, not skipped.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchsleuth.torch_internals import hooks

INDUCTOR = "torch._inductor.config"
DYNAMO = "torch._dynamo.config"
Settings = Mapping[str, Mapping[str, Any]]


class UnknownSetting(RuntimeError):
    """This torch has no such setting."""


def settings_for_dynamic(dynamic: bool) -> dict[str, bool]:
    """What `torch.compile(dynamic=...)` stands for.

    >>> settings_for_dynamic(True)
    {'assume_static_by_default': False}
    """
    if dynamic:
        return {"assume_static_by_default": False}
    return {"assume_static_by_default": True, "automatic_dynamic_shapes": False}


def ignore_dynamic_marks() -> None:
    """From now on `mark_dynamic` and `maybe_mark_dynamic` of a program do nothing, as if their lines were gone."""
    for module_name in ("torch._dynamo", "torch._dynamo.decorators"):
        module: Any = importlib.import_module(module_name)
        for name in ("mark_dynamic", "maybe_mark_dynamic"):
            if hasattr(module, name):
                setattr(module, name, lambda *_args, **_kwargs: None)


def mark_dimensions(dimensions: Sequence[tuple[str, str, int]]) -> None:
    """Marks (function, argument, dimension) as dynamic whenever Dynamo comes to a call of such a function.

    A version that was compiled with the mark takes tensors without it, so the first call is enough. Sizes 0 and 1 are
    left alone: torch compiles them separately and would refuse the mark.
    """

    def on_frame(call: hooks.FrameCapture) -> Any:
        for function, argument, dimension in dimensions:
            value = call.values.get(argument) if function.rpartition(".")[2] == call.function else None
            if isinstance(value, torch.Tensor) and dimension < value.dim() and value.shape[dimension] > 1:
                torch._dynamo.mark_dynamic(value, dimension)
        return call.as_without_us()

    hooks.hook_frame_captures(on_frame)


def compile_nothing() -> None:
    """From now on every `torch.compile` of a program is ignored, `fullgraph=True` as well."""
    torch.compiler.set_stance("force_eager")


def force_fullgraph(fullgraph: bool) -> None:
    """From now on every `torch.compile` of a program has this `fullgraph`, whatever it says itself."""
    dynamo: Any = importlib.import_module("torch._dynamo")
    original = dynamo.optimize

    @functools.wraps(original)
    def optimize(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **{**kwargs, "nopython": fullgraph})

    dynamo.optimize = optimize


def compile_with(backend: str | None, mode: str | None) -> None:
    """From now on every `torch.compile` of a program has this backend, and Inductor this mode.

    Replaced where it is handed to Dynamo, so that whoever watches sees what really compiles.
    """
    dynamo: Any = importlib.import_module("torch._dynamo")
    original = dynamo.optimize

    @functools.wraps(original)
    def optimize(*args: Any, **kwargs: Any) -> Any:
        given = kwargs.pop("backend", args[0] if args else "inductor")
        return original(_replaced(given, backend, mode), *args[1:], **kwargs)

    dynamo.optimize = optimize


def _replaced(given: Any, backend: str | None, mode: str | None) -> Any:
    """The backend to use instead of the one given; options= of the program stay where Inductor stays."""
    if backend not in (None, "inductor"):
        return backend_named(backend)
    is_inductor = given == "inductor" or hooks.is_inductor(given)
    if (backend is None and not is_inductor) or (is_inductor and mode is None):
        return given
    wrapper: Any = torch._TorchCompileInductorWrapper(mode, None, getattr(given, "dynamic", None))
    of_modes = {key for options in torch._inductor.list_mode_options().values() for key in options}
    for key, value in (getattr(given, "config", None) or {}).items():
        if key not in of_modes:
            wrapper.config[key] = value
    return wrapper


def run_before_captures(snippet: str) -> None:
    """Runs what a person would paste, once, when Dynamo comes to the first frame: by then all of torch is there."""
    pending = [snippet]

    def on_frame(call: hooks.FrameCapture) -> Any:
        while pending:
            try:
                run_snippet(pending.pop())
            except Exception as error:  # a run without it would be taken for a run with it
                sys.stderr.write(f"torchsleuth: the snippet cannot be run: {type(error).__name__}: {error}\n")
                raise SystemExit(2) from error
        return call.as_without_us()

    hooks.hook_frame_captures(on_frame)


def run_snippet(snippet: str) -> None:
    """Runs a few lines as if they stood in the program below `import torch`: `run_snippet("torch.manual_seed(0)")`."""
    exec(compile(snippet, "<workaround>", "exec"), {"torch": torch})


def check_settings(wanted: Settings) -> None:
    """Raises `UnknownSetting` for what this torch does not have."""
    for module_name, values in wanted.items():
        module = importlib.import_module(module_name)
        for key in values:
            if key not in module._config:
                raise UnknownSetting(f"this torch has no setting {module_name}.{key}")


def put_in_force(wanted: Settings) -> None:
    """Sets what differs from `wanted`: `put_in_force({"torch._inductor.config": {"max_fusion_size": 1}})`."""
    for module_name, values in wanted.items():
        module = importlib.import_module(module_name)
        for key, value in values.items():
            if getattr(module, key) != value:
                setattr(module, key, value)


def force_at_captures(wanted: Settings) -> None:
    """Puts settings in force whenever Dynamo looks at a frame."""

    def on_frame(call: hooks.FrameCapture) -> Any:
        put_in_force(wanted)
        return call.as_without_us()

    hooks.hook_frame_captures(on_frame)


def force_at_backend_calls(wanted: Settings) -> None:
    """Puts settings in force whenever a captured graph goes to its backend."""

    def on_backend(call: hooks.BackendCall) -> Any:
        put_in_force(wanted)
        given = getattr(call.backend, "config", None)
        if hooks.is_inductor(call.backend) and isinstance(given, dict):
            # What mode= and options= stand for would be patched in over ours.
            inductor = wanted.get(INDUCTOR, {})
            given.update({key: value for key, value in inductor.items() if key in given})
        return call.as_without_us()

    hooks.hook_backend_calls(on_backend)


def force_at_inner_compiles(wanted: Settings) -> None:
    """Puts settings in force whenever an aten graph goes to Inductor, also for a backward compiled later."""

    def on_inner(call: hooks.InnerCompile) -> Any:
        put_in_force(wanted)
        return call.as_without_us()

    hooks.hook_inner_compiles(on_inner)


def backend_named(name: str) -> Any:
    """The backend of that name: torchsleuth's own also where their entry points are not installed."""
    if name.startswith("sleuth_"):
        return getattr(importlib.import_module("torchsleuth.torch_core.backends.catalog"), name)
    return hooks.lookup_backend(name)
