"""Torch's dispatch modes: seeing every operator call below autograd, and running where no mode sees us.

A mode is switched off while it handles a call, so the nested graphs of a higher-order operator are wrapped to
switch it on again; those that carry another operator, or are written in operators, run their dense kernel under it.

Versions: `_ForceDispatchKeyGuard` is that of 2.11..2.15, and modes take part in higher-order operators where
`supports_higher_order_operators` is set.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

# op, args, kwargs, and the real call to make (once) somewhere in between
Watcher = Callable[[Any, tuple[Any, ...], dict[str, Any], Callable[[], Any]], Any]

_WRITTEN_IN_OPERATORS = (
    "auto_functionalized",
    "auto_functionalized_v2",
    "with_effects",
    "flex_attention",
    "flex_attention_backward",
)


def outside_all_modes() -> AbstractContextManager[object]:
    """A context in which no fake-tensor, proxy or other dispatch mode of the caller sees what we do.

    >>> with outside_all_modes():
    ...     pass
    """
    stack = ExitStack()
    stack.enter_context(_disable_current_modes())
    stack.enter_context(torch._C.DisableTorchFunctionSubclass())
    return stack


# Of the process: what changes how eager computes, by the name of its getter and of its setter, or of the attribute.
_OF_PROCESS = (
    ("get_default_dtype", "set_default_dtype"),
    ("get_float32_matmul_precision", "set_float32_matmul_precision"),
    ("are_deterministic_algorithms_enabled", "use_deterministic_algorithms"),
    ("get_num_threads", "set_num_threads"),
    *(
        (f"backends.cuda.{kind}_sdp_enabled", f"backends.cuda.enable_{kind}_sdp")
        for kind in ("flash", "mem_efficient", "math", "cudnn")
    ),
    *((f"backends.cudnn.{name}",) for name in ("enabled", "deterministic", "allow_tf32")),
    *(
        (f"backends.cuda.matmul.allow_{name}",)
        for name in (
            "fp16_reduced_precision_reduction",
            "bf16_reduced_precision_reduction",
            "fp16_accumulation",
        )
    ),
)


@dataclass(frozen=True)
class Switches:
    """What holds for operators here beside their arguments, in this thread and in the whole process.

    >>> with Switches.now().of_thread():
    ...     pass
    """

    grad: bool
    inference: bool
    casts: tuple[tuple[str, torch.dtype, bool], ...]
    process: tuple[Any, ...]

    @staticmethod
    def now() -> Switches:
        casts = [
            (device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
            for device in ("cpu", "cuda")
        ]
        process = [_asked(names[0]) for names in _OF_PROCESS]
        return Switches(
            torch.is_grad_enabled(), torch.is_inference_mode_enabled(), tuple(casts), tuple(process)
        )

    def of_thread(self) -> AbstractContextManager[object]:
        """Gradients, inference mode and autocast, for another thread of the process."""
        stack = ExitStack()
        if self.inference:
            stack.enter_context(torch.inference_mode())
        stack.enter_context(torch.set_grad_enabled(self.grad))
        for device, dtype, enabled in self.casts:
            if enabled or torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled))
        return stack

    def set_in_process(self) -> None:
        """Those of the process, in another one."""
        for (*of, last), value in zip(_OF_PROCESS, self.process):
            owner, _, name = last.rpartition(".")
            with suppress(
                AttributeError, RuntimeError
            ):  # of another release, or of a device that is not there
                if value is not None and value != _asked((of or [last])[0]):
                    found = attrgetter(owner)(torch) if owner else torch
                    getattr(found, name)(value) if of else setattr(found, name, value)


def _asked(name: str) -> Any:
    """What a switch of the process stands at; None where this torch has none, or does not say."""
    try:
        found = attrgetter(name)(torch)
        return found() if callable(found) else found
    except (AttributeError, RuntimeError):
        return None


def thread_state() -> dict[str, str]:
    """What torch keeps for this thread beside its tensors, by the name a person would give it.

    A capture that fails has to leave all of it as it was.

    >>> with torch.no_grad():
    ...     thread_state()["the grad mode"]
    'False'
    """
    state: dict[str, Any] = {
        "the grad mode": torch.is_grad_enabled(),
        "the inference mode": torch.is_inference_mode_enabled(),
        "the level of forward gradients": torch.autograd.forward_ad._current_level,
        "the levels of torch.func": torch._C._functorch.get_dynamic_layer_stack_depth(),
        "autocast": [torch.is_autocast_enabled(device) for device in ("cpu", "cuda")],
        "the function modes": torch._C._len_torch_function_stack(),
        "the dispatch modes": torch._C._len_torch_dispatch_stack(),
        "the dispatch keys": [
            torch._C._dispatch_tls_local_include_set().raw_repr(),
            torch._C._dispatch_tls_local_exclude_set().raw_repr(),
        ],
    }
    return {name: str(value) for name, value in state.items()}


def tracing_under_way() -> bool:
    """Whether torch is tracing right here, as `torch.export` does: values are fake or stand for nodes of a graph.

    >>> tracing_under_way()
    False
    """
    key = torch._C._TorchDispatchModeKey
    modes = (getattr(key, name, None) for name in ("FAKE", "PROXY", "FUNCTIONAL"))
    return any(mode is not None and torch._C._get_dispatch_mode(mode) is not None for mode in modes)


def set_grad_enabled() -> Callable[[bool], None]:
    """What Dynamo writes into a graph for `torch.no_grad()`: `set_grad_enabled()(False)`."""
    return torch._C._set_grad_enabled


def watching_ops(watcher: Watcher) -> AbstractContextManager[Any]:
    """A context in which `watcher(op, args, kwargs, call)` stands for every operator call; it returns `call()`.

    >>> with watching_ops(lambda op, args, kwargs, call: call()):
    ...     torch.ones(2).exp()
    tensor([2.7183, 2.7183])
    """

    return _Watching(watcher)


class _Watching(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self, watcher: Watcher) -> None:
        super().__init__()
        self.watcher = watcher

    def __torch_dispatch__(self, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(op, torch._ops.OpOverload):
            with _as_unwatched((*args, *kwargs.values())):
                return self.watcher(op, args, kwargs, lambda: op(*args, **kwargs))
        return _higher_order(op, args, kwargs, self)


def _as_unwatched(given: tuple[Any, ...]) -> AbstractContextManager[object]:
    """As without a mode: below one, torch takes no notice of what is conjugated, also inside of an operator."""
    if not any(isinstance(value, torch.Tensor) and value.is_complex() for value in given):
        return nullcontext()
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in (torch._C.DispatchKey.Conjugate, torch._C.DispatchKey.Negative):
        excluded = excluded.remove(key)
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)


def _higher_order(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], mode: Any) -> Any:
    dense = op.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
    if op.name() in _WRITTEN_IN_OPERATORS and dense is not None:
        with mode:
            return dense(*args, **kwargs)
    args, kwargs = _wrap_graphs((args, kwargs), mode)
    return op(*args, **kwargs)


def _wrap_graphs(value: Any, mode: Any) -> Any:
    if isinstance(value, torch.fx.GraphModule):
        return _under(mode, value)
    if type(value) in (list, tuple):
        return type(value)(_wrap_graphs(each, mode) for each in value)
    if type(value) is dict:
        return {key: _wrap_graphs(each, mode) for key, each in value.items()}
    return value


def _under(mode: Any, graph: torch.fx.GraphModule) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return graph(*args, **kwargs)

    return run
