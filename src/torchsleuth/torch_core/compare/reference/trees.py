"""Trees of values: what is a container, what are its parts, and how a person writes the path to a part.

The idea: every rule about containers lives here, so that the rules about leaves never see one.
"""

from __future__ import annotations

import collections
import dataclasses
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.fx

Part = tuple[str, Any]
"""The suffix a part adds to its container's path (`[2]`, `['logits']`, `.loss`) and the part."""

ATOMS = (str, bytes, int, float, complex, bool, type(None), torch.device, torch.dtype, torch.layout)


def is_numpy(value: object) -> bool:
    """Whether `value` is a numpy array or scalar; numpy itself is never imported for the question."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))


def parts(value: Any) -> list[Part] | None:
    """The named parts of a container, `None` for a leaf.

    Example: `parts({"a": 1}) == [("['a']", 1)]` and `parts(3) is None`.
    """
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            return [(f"[{i}]", t) for i, t in enumerate(value.unbind())]
        return None
    if isinstance(value, ATOMS) or is_numpy(value) or isinstance(value, (set, frozenset)):
        return None
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", value[key]) for key in value]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", getattr(value, name)) for name in value._fields]
    if isinstance(value, (list, tuple, collections.deque, torch.nn.ParameterList)):
        return [(f"[{i}]", item) for i, item in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f".{f.name}", getattr(value, f.name)) for f in dataclasses.fields(value)]
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, torch.fx.Node)) or callable(value):
        return None
    attributes = getattr(value, "__dict__", None)
    if attributes:
        return [(f".{name}", item) for name, item in attributes.items()]
    return None


def leaves(value: Any, path: str = "outputs") -> Iterator[Part]:
    """Every leaf of a tree with its full path, in order.

    Example: `list(leaves((1, {"x": 2}))) == [("outputs[0]", 1), ("outputs[1]['x']", 2)]`.
    """
    inner = parts(value)
    if inner is None:
        yield path, value
        return
    for suffix, item in inner:
        yield from leaves(item, path + suffix)
