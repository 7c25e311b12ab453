"""When two states ask the same question: the same graph, inputs, values and settings."""

from __future__ import annotations

import functools
import hashlib
import json
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from torchsleuth.script_runtime.inputs import storage_bytes
from torchsleuth.search.minify.search.contract import State

# Values are never changed in place, so each is hashed once; by address, a later tensor could pass for an earlier one.
_DIGESTS = WeakTensorKeyDictionary()


@functools.singledispatch
def state_key(state: Any) -> str:
    """Equal for states that ask the same question: `state_key(state) == state_key(state.having())`."""
    raise TypeError(f"nobody said when two of {type(state).__name__} are the same")


@state_key.register
def _(state: State) -> str:
    graphs = [str(part.graph) for part in state.graph.modules() if isinstance(part, torch.fx.GraphModule)]
    values = [_value_key(i.value) for i in state.inputs]
    how = [state.settings.to_json(), state.static_names, state.interpreted]
    parts = [graphs, state.description.to_json(), values, how]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _value_key(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    if value not in _DIGESTS:
        storage = value.untyped_storage().cpu()
        _DIGESTS[value] = hashlib.sha256(storage_bytes(storage)).hexdigest()
    return _DIGESTS[value]
