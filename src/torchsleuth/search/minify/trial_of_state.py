"""A state of a search as the trial that asks about it: graph as text, inputs by description, values in a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchsleuth.child.trial import Trial
from torchsleuth.core.change_table import INTERPRETED
from torchsleuth.core.changes import NOTHING
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.search.minify.search.contract import State
from torchsleuth.torch_core.graphs.printer import print_graph
from torchsleuth.torch_core.tensors.specs import InputsDescription, TensorSpec, describe_inputs
from torchsleuth.torch_core.tensors.store import ContentStoreWriter


def trial_of(state: State, expected: Signature, store: Path, *, values: bool = True) -> Trial:
    """A state as a Trial; values that matter go to the tensor store, each once, unless the question is not about them.

    >>> trial_of(state, Signature("crash", "run"), Path("values")).placeholders
    ('x',)
    """
    printed = print_graph(state.graph)
    settings = state.settings
    if state.static_names is not None:
        places = [place for place, given in enumerate(state.inputs) if given.name in state.static_names]
        settings = replace(settings, compile_kwargs={**settings.compile_kwargs, "static_input_idxs": places})
    return Trial(
        printed.source,
        expected,
        settings,
        placeholders=tuple(i.name for i in state.inputs),
        inputs=(kept_description(state, store) if values else state.description).to_json(),
        constants=_constants(printed.constants, store, state.constant_devices),
        measure_noise=expected.kind == "accuracy",
        change=INTERPRETED if state.interpreted else NOTHING,
        embedded=state.embedded.source,
        imports=tuple(dict.fromkeys([*printed.imports, *state.embedded.imports])),
        store=str(store),
    )


def kept_description(state: State, store: Path) -> InputsDescription:
    """The inputs of a state with their values in the store."""
    writer = ContentStoreWriter(store)
    specs = []
    for given in state.inputs:
        spec = given.spec
        if isinstance(spec, TensorSpec) and given.value is not None:
            spec = replace(spec, storage=writer.write_storage(given.value.untyped_storage()))
        specs.append(spec)
    return InputsDescription(tuple(specs), state.symbols)


def _constants(constants: Mapping[str, Any], store: Path, devices: Mapping[str, str]) -> dict[str, Any]:
    if not constants:
        return {}
    description = describe_inputs(list(constants.values()), None, ContentStoreWriter(store))
    specs = [
        replace(spec, device=devices[name]) if isinstance(spec, TensorSpec) and name in devices else spec
        for name, spec in zip(constants, description.inputs)
    ]
    description = replace(description, inputs=tuple(specs))
    return {"names": list(constants), "description": description.to_json()}
