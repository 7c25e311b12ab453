"""Settings back to what torch starts with: configuration, options, global switches, training to inference.

And from a graph handed to Inductor's inner compiler to one handed to the whole of it: the same calls under
`torch.compile` are what a person would write. Where they fail there, too, the rest of the search goes on at that level,
so that what it ends with can be written so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any

from torchsleuth.core.cases.record import AmbientState
from torchsleuth.search.minify.contract import Edit, State

# A graph that trains is more to understand than one that does not, so plain is without gradients.
_PLAIN = AmbientState(grad=False)


def default_settings(state: State) -> Iterator[Edit]:
    """One edit per setting that differs from torch's default."""
    for module, values in state.settings.config.items():
        for key in values:
            yield Edit(f"{module}.{key} to its default", _without_config, (module, key))
    for key in state.settings.options:
        yield Edit(f"option {key} to its default", _without_option, (key,))
    if state.settings.parted:
        yield Edit("compiled for the inputs of the call", partial(State.setting, parted=False))
    for each in fields(AmbientState) if state.settings.state is not None else ():
        plain = getattr(_PLAIN, each.name)
        if getattr(state.settings.state, each.name) != plain:
            yield Edit(f"{each.name} to {plain}", _with_ambient, (each.name, plain))


def _without_config(state: State, module: str, key: str) -> State:
    config = {
        m: {k: v for k, v in of.items() if (m, k) != (module, key)} for m, of in state.settings.config.items()
    }
    return state.setting(config={m: values for m, values in config.items() if values})


def _without_option(state: State, key: str) -> State:
    return state.setting(options={k: v for k, v in state.settings.options.items() if k != key})


def _with_ambient(state: State, key: str, plain: Any) -> State | None:
    ambient = state.settings.state
    return None if ambient is None else state.setting(state=replace(ambient, **{key: plain}))


def for_inference(state: State) -> Iterator[Edit]:
    """One edit: compile the graph as an inference graph with plain inputs."""
    kwargs = state.settings.compile_kwargs
    if not kwargs.get("is_inference") or any(v for k, v in kwargs.items() if k != "is_inference"):
        yield Edit("as inference", _as_inference)


def _as_inference(state: State) -> State:
    return state.setting(compile_kwargs={"is_inference": True}).having(static_names=())


def compile_the_whole_way(state: State) -> Iterator[Edit]:
    """One edit for a graph after AOTAutograd: compile it as Dynamo would hand it over."""
    if state.settings.level == "aot":
        yield Edit("compile the whole way", _from_dynamo)


def _from_dynamo(state: State) -> State:
    plain = state.setting(level="dynamo", compile_kwargs={}, visible_outputs=None)
    return plain.having(static_names=None)
