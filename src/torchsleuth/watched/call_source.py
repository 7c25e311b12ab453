"""One call of a compiled function as a plain script: the user's functions and classes, the values, the call.

Made in the user's process from live objects, while the call is under way. Of the values that hold their own name at the
top of a file the statement that made them is taken, or, in a second form, all are rebuilt from what they are now.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from torchsleuth.torch_internals.calls_under_way import CallUnderWay
from torchsleuth.torch_internals.configuration import changed_settings
from torchsleuth.watched.embed_paste import Paste
from torchsleuth.watched.embed_slice import CannotEmbed
from torchsleuth.watched.value_source import ValueSource

# What dynamic= of torch.compile sets while the function runs.
_SET_BY_DYNAMIC = {"assume_static_by_default", "automatic_dynamic_shapes"}


@dataclass(frozen=True)
class CallSource:
    """The parts of the script: imports, definitions and values, the lines of the call; what it needs and lacks."""

    imports: tuple[str, ...]
    source: str
    setup: tuple[str, ...]
    call: tuple[str, ...]
    notes: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def call_sources(call: CallUnderWay, state: Mapping[str, Any]) -> tuple[list[CallSource], str | None]:
    """The forms in which a call can be written, the nearest to the user's text first; or why there is none.

    Used as `forms, why_none = call_sources(call_under_way(), global_state())`.
    """
    forms: list[CallSource] = []
    reason = None
    for rebuilt in (False, True):
        try:
            form = _call_source(call, state, rebuilt)
        except CannotEmbed as why:
            reason = str(why)
        else:
            forms += [form] if form not in forms else []
    return forms, None if forms else reason


def _call_source(call: CallUnderWay, state: Mapping[str, Any], rebuilt: bool) -> CallSource:
    paste = Paste(by_value=(torch.Tensor, torch.nn.Module) if rebuilt else (torch.Tensor,))
    values = ValueSource(paste)
    paste.write_value = values.expression
    function = paste.expression(call.function, _name_of(call.function))
    names = _parameter_names(call)
    given = [paste.expression(value, name) for name, value in zip(names, call.args)]
    given += [f"{key}={paste.expression(value, key)}" for key, value in call.kwargs.items()]
    how = list(_compile_arguments(call, paste))
    embedded = paste.finish()
    lines = [f"compiled({', '.join(given)})"]
    contexts = list(_contexts(state))
    if contexts:
        lines = [f"with {', '.join(contexts)}:", *(f"    {line}" for line in lines)]
    return CallSource(
        imports=tuple(dict.fromkeys(("import torch", *embedded.imports))),
        source=embedded.source,
        setup=(*_settings(call), f"compiled = torch.compile({', '.join([function, *how])})"),
        call=tuple(lines),
        notes=embedded.notes,
        replaced=tuple(values.replaced),
    )


def _name_of(function: Any) -> str:
    if isinstance(function, torch.nn.Module):
        return "model"
    return str(getattr(function, "__name__", "function"))


def _parameter_names(call: CallUnderWay) -> list[str]:
    function = call.function.forward if isinstance(call.function, torch.nn.Module) else call.function
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    plain = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return (plain + [f"x{i}" for i in range(len(call.args))])[: len(call.args)]


def _compile_arguments(call: CallUnderWay, paste: Paste) -> Iterator[str]:
    if call.backend != "inductor":
        yield f"backend={paste.expression(call.backend, 'backend')}"
    if call.fullgraph:
        yield "fullgraph=True"
    if call.dynamic is not None:
        yield f"dynamic={call.dynamic}"
    if call.options:
        yield f"options={paste.expression(call.options, 'options')}"


def _settings(call: CallUnderWay) -> Iterator[str]:
    """The lines that set what is not at its default, where a line can."""
    for module, values in changed_settings().items():
        for key, value in values.items():
            by_dynamic = call.dynamic is not None and key in _SET_BY_DYNAMIC
            if not by_dynamic and isinstance(value, (bool, int, float, str)):
                yield f"{module}.{key} = {value!r}"


def _contexts(state: Mapping[str, Any]) -> Iterator[str]:
    if state["inference_mode"]:
        yield "torch.inference_mode()"
    elif not state["grad"]:
        yield "torch.no_grad()"
    for device, dtype in state["autocast"].items():
        yield f"torch.autocast({device!r}, dtype={dtype})"
