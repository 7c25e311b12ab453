"""Calls of compiled functions: which one is under way, and whole calls seen from before the function runs to after it.

Dynamo looks at frames one by one, also at the rest of a function after a graph break, for which there is no source. The
call that the user wrote is further up on the stack: in the wrapper that `torch.compile` put around the function. That
wrapper is left as it is: each call asks, right before the function runs, which callback looks at frames, and puts the
former one back at the end; those two places are where the hook is.

Versions: the wrapper is a function named `compile_wrapper` with `_callback_from_stance` and `_maybe_set_eval_frame`
(2.11 to 2.15); without the name no call is found, without the two `UnsupportedTorch` is raised.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from torchsleuth.torch_internals.hooks import backend_options, is_inductor, ships_with_torch, user_backend
from torchsleuth.torch_internals.places import UnsupportedTorch

WRAPPER = "compile_wrapper"
# The one entry of options= that is Dynamo's and not the backend's.
GUARD_FILTER = "guard_filter_fn"


@dataclass(frozen=True)
class CallUnderWay:
    """`torch.compile(function, backend=..., fullgraph=..., dynamic=...)(*args, **kwargs)`.

    `backend` is a name where torch knows the backend by one, else the object itself.
    """

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    backend: Any = "inductor"
    options: dict[str, Any] = field(default_factory=dict)
    fullgraph: bool = False
    dynamic: bool | None = None
    # `dynamic_shapes=` under the name that this torch has for it.
    shapes: dict[str, Any] = field(default_factory=dict)


def mode_of(options: Mapping[str, Any], dynamic: bool | None) -> str | None:
    """The `mode=` of torch.compile that stands for these settings of Inductor, None where none does.

    >>> mode_of({"max_autotune": True}, None) is None
    True
    """
    modes = importlib.import_module("torch._inductor").list_mode_options(None, dynamic)
    return next((mode for mode, settings in modes.items() if settings and settings == options), None)


def call_under_way() -> CallUnderWay | None:
    """The innermost call of a compiled function on the stack.

    >>> call_under_way() is None
    True
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        local = frame.f_locals if frame.f_code.co_name == WRAPPER else {}
        if {"self", "fn", "args", "kwargs"} <= local.keys() and hasattr(local["self"], "callback"):
            return call_of_wrapper(local)
        frame = frame.f_back
    return None


def caller_of_compiled() -> FrameType | None:
    """The frame that calls the compiled function that is under way, behind torch's own.

    >>> caller_of_compiled() is None
    True
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != WRAPPER:
        frame = frame.f_back
    inside = str(Path(torch.__file__).parent)
    while frame is not None and frame.f_code.co_filename.startswith(inside):
        frame = frame.f_back
    return frame


def call_of_wrapper(local: Mapping[str, Any]) -> CallUnderWay:
    """The call that a wrapper of `torch.compile` makes, by its local variables."""
    context = local["self"]
    backend = context.callback
    while hasattr(backend, "_torchdynamo_orig_backend"):
        backend = backend._torchdynamo_orig_backend
    options = backend_options(backend, {})
    kept_guards = getattr(getattr(context, "_hooks", None), GUARD_FILTER, None)
    if kept_guards is not None:
        options = {**options, GUARD_FILTER: kept_guards}
    backend = user_backend(backend)
    if is_inductor(backend):
        backend = "inductor"
    elif ships_with_torch(backend):
        backend = getattr(backend, "__name__", None) or type(backend).__name__
    return CallUnderWay(
        function=_as_the_user_gave_it(local["fn"]),
        args=tuple(local["args"]),
        kwargs=dict(local["kwargs"]),
        backend=backend,
        options=options,
        fullgraph=bool(
            getattr(context, "fullgraph", False) or getattr(context, "error_on_graph_break", False)
        ),
        dynamic=getattr(context, "_dynamic", None),
        # 2.14 renamed it, or 2.15.
        shapes={
            name: value
            for name in ("dynamic_shapes", "shapes_spec")
            if (value := getattr(context, f"_{name}", None)) is not None
        },
    )


def _as_the_user_gave_it(function: Any) -> Any:
    """A module is compiled through its `__call__`, torch's own inside another function; the user gave the module."""
    code = getattr(function, "__code__", None)
    if code is not None and code.co_filename.endswith("external_utils.py") and "fn" in code.co_freevars:
        function = function.__closure__[code.co_freevars.index("fn")].cell_contents
    called = getattr(function, "__name__", "") in ("__call__", "_wrapped_call_impl", "_call_impl")
    if called and inspect.ismethod(function) and isinstance(function.__self__, torch.nn.Module):
        return function.__self__
    return function


@dataclass(frozen=True)
class CompiledCall:
    """A compiled function is about to run: the function as the user wrote it, its arguments, Dynamo's callback.

    `under_way` is the same call as the user wrote it, with the options of its compile.
    """

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: dict[str, Any]
    callback: Any
    under_way: CallUnderWay

    def run_captured(self) -> Any:
        """The call as Dynamo makes it; with the settings of the call that is about to be made."""
        set_eval_frame = importlib.import_module("torch._C._dynamo.eval_frame").set_eval_frame
        set_eval_frame(self.callback)
        try:
            return self.function(*self.args, **self.kwargs)
        finally:
            set_eval_frame(None)

    def run_eager(self) -> Any:
        """The call without Dynamo, also in functions that it calls; nothing of this process is compiled any more."""
        torch.compiler.set_stance("force_eager")
        return self.function(*self.args, **self.kwargs)


End = Callable[[tuple[Any, ...]], None]


def hook_compiled_calls(
    begin: Callable[[CompiledCall], End | None], in_eager: bool = False
) -> Callable[[], None]:
    """Shows `begin` every call of a compiled function that no other such call made; returns the undo function.
    With `in_eager` nothing is compiled.

    What `begin` returns is called when the call has ended: with what it returned as the one item, or with no item where
    it raised, or where torch keeps the result under another name than that of 2.13.
    """
    eval_frame: Any = importlib.import_module("torch._dynamo.eval_frame")
    choose, put = (getattr(eval_frame, n, None) for n in ("_callback_from_stance", "_maybe_set_eval_frame"))
    if choose is None or put is None:
        raise UnsupportedTorch(
            f"in torch {torch.__version__} calls of compiled functions cannot be seen as a whole"
        )
    # The wrapper's frame, what to call at its end, and whether its function has been started.
    open_calls: list[list[Any]] = []

    def callback_from_stance(callback: Any) -> Any:
        chosen = choose(callback)
        frame = _caller()
        if callable(chosen) and frame.f_code.co_name == WRAPPER and not open_calls:
            seen = frame.f_locals
            if seen.get("prior") in (None, False) and {"self", "fn", "args", "kwargs"} <= seen.keys():
                under_way = call_of_wrapper(seen)
                end = begin(CompiledCall(seen["fn"], seen["args"], seen["kwargs"], chosen, under_way))
                if end is not None:
                    open_calls.append([frame, end, False])
        return None if in_eager else chosen

    def maybe_set_eval_frame(callback: Any) -> Any:
        if open_calls and open_calls[0][0] is _caller():
            if open_calls[0][2]:
                frame, end, _ = open_calls.pop()
                end((frame.f_locals["result"],) if "result" in frame.f_locals else ())
            else:
                open_calls[0][2] = True
        return put(callback)

    eval_frame._callback_from_stance = callback_from_stance
    eval_frame._maybe_set_eval_frame = maybe_set_eval_frame

    def undo() -> None:
        eval_frame._callback_from_stance, eval_frame._maybe_set_eval_frame = choose, put

    return undo


def _caller() -> FrameType:
    """The frame that came to these hooks, of which there may be several, one in the other."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:
        frame = frame.f_back
    return frame


def is_dynamos_own(error: BaseException) -> bool:
    """True for exceptions with which Dynamo says that it cannot capture something."""
    return type(error).__module__.startswith("torch._dynamo")


@contextlib.contextmanager
def compiled_anew() -> Iterator[None]:
    """Inside, what was compiled before is compiled again, drawing eager's random numbers; so it is afterwards.

    Used as `with compiled_anew(): torch.compile(model)(x)`.
    """
    inductor: Any = importlib.import_module("torch._inductor.config")
    functorch: Any = importlib.import_module("torch._functorch.config")
    torch.compiler.reset()
    try:
        with inductor.patch(fallback_random=True), functorch.patch(enable_autograd_cache=False):
            yield
    finally:
        torch.compiler.reset()
