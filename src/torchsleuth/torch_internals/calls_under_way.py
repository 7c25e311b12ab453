"""The call of a compiled function that is under way: which function, with which arguments, compiled how.

Dynamo looks at frames one by one, also at the rest of a function after a graph break, for which there is no source. The
call that the user wrote is further up on the stack: in the wrapper that `torch.compile` put around the function.

Versions: the wrapper is a function named `compile_wrapper` (2.11 to 2.13); where it is not found there is no answer.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

from torchsleuth.torch_internals.hooks import backend_options, is_inductor, ships_with_torch, user_backend

_WRAPPER = "compile_wrapper"
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


def call_under_way(start: FrameType | None = None) -> CallUnderWay | None:
    """The innermost call of a compiled function on the stack, from this frame upwards.

    >>> call_under_way() is None
    True
    """
    frame = start or sys._getframe(1)
    while frame is not None:
        local = frame.f_locals if frame.f_code.co_name == _WRAPPER else {}
        if {"self", "fn", "args", "kwargs"} <= local.keys() and hasattr(local["self"], "callback"):
            return call_of_wrapper(local)
        frame = frame.f_back  # type: ignore[assignment]
    return None


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
