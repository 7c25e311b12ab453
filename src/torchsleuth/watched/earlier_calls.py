"""The calls of a function that made Dynamo compile something: some failures come only after others.

A limit of recompilations is reached, or a guard is missing that would have told two calls apart. What such calls were
given is kept lightly: tensors by their form, with their numbers where those are few, objects as long as others do.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch

from torchsleuth.torch_core.tensors import TensorSpec, Unsupported, describe_tensor
from torchsleuth.torch_internals.compiled_calls import CallUnderWay
from torchsleuth.torch_internals.tensors import has_no_values
from torchsleuth.watched.call_state import roots_of, user_function

# Up to this many numbers of a tensor are kept and written out; of others the form is enough, mostly.
FEW_VALUES = 16
# Of one function, and functions in all.
MOST_CALLS, MOST_FUNCTIONS = 12, 256
_ATOMS = (bool, int, float, complex, str, type(None))
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


@dataclass(frozen=True)
class KeptTensor:
    """A tensor as it was in a call; `value` where its numbers are few."""

    spec: TensorSpec
    value: torch.Tensor | None


@dataclass(frozen=True)
class KeptObject:
    """An object that may be gone by now: `kept.get()` is None then."""

    get: Callable[[], Any]


@dataclass(frozen=True)
class EarlierCall:
    """A call that compiled something, its arguments kept, and the plain values that it could read besides them."""

    call: CallUnderWay
    form: str
    read: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class EarlierCalls:
    """What is known of the calls of this process: `calls.note(call)`, later `calls.before(call)`."""

    calls: dict[CodeType, list[EarlierCall]] = field(default_factory=dict)

    def note(self, call: CallUnderWay) -> None:
        """Keeps a call that compiled something, unless one like it came right before."""
        function = user_function(call.function)
        if function is None or (function.__code__ not in self.calls and len(self.calls) >= MOST_FUNCTIONS):
            return
        known = self.calls.setdefault(function.__code__, [])
        read = values_read(call)
        form = repr((id(call.function), *map(_form, (call.args, call.kwargs)), read))
        kept = EarlierCall(_kept_call(call), form, read)
        if not known or known[-1].form != kept.form:
            known.append(kept)
            del known[:-MOST_CALLS]

    def before(self, call: CallUnderWay) -> list[EarlierCall]:
        """The calls of the same function, the earliest first."""
        function = user_function(call.function)
        known = [] if function is None else self.calls.get(function.__code__, [])
        return list(known)


def values_read(call: CallUnderWay) -> dict[str, Any]:
    """Numbers, texts and flags that a call reads by name, globals and attributes: `{"scale (global)": 2.0}`."""
    function = call.function
    owner = function if isinstance(function, torch.nn.Module) else getattr(function, "__self__", None)
    attributes = {f"self.{name}": value for name, value in getattr(owner, "__dict__", {}).items()}
    found = {**attributes, **dict(roots_of(function, (), {}))}
    return {
        path: value
        for path, value in found.items()
        if type(value) in _ATOMS and (path.startswith("self.") or path.endswith(" (global)"))
    }


def _kept_call(call: CallUnderWay) -> CallUnderWay:
    kept = {name: _kept(value) for name, value in call.kwargs.items()}
    return CallUnderWay(
        call.function, tuple(map(_kept, call.args)), kept, call.backend, {}, call.fullgraph, call.dynamic
    )


def _kept(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _kept_tensor(value)
    if type(value) in (list, tuple):
        return type(value)(map(_kept, value))
    if type(value) is dict:
        return {key: _kept(item) for key, item in value.items()}
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, type)):
        return value
    try:
        return KeptObject(weakref.ref(value))
    except TypeError:
        return value


def _kept_tensor(tensor: torch.Tensor) -> Any:
    if type(tensor) not in _PLAIN or tensor.layout is not torch.strided or tensor.is_nested:
        return KeptObject(weakref.ref(tensor))
    try:
        spec = describe_tensor(tensor)
    except Unsupported:
        return KeptObject(weakref.ref(tensor))
    few = tensor.numel() <= FEW_VALUES and not has_no_values(tensor)
    return KeptTensor(spec, tensor.detach().clone() if few else None)


def _form(value: Any) -> str:
    """Equal for values that Dynamo would most likely not tell apart."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{tuple(value.shape)}{value.requires_grad}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}{[_form(item) for item in value]}"
    if isinstance(value, dict):
        return str({str(key): _form(item) for key, item in value.items()})
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    return str(id(value))
