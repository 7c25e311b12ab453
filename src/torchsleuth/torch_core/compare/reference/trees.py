"""Values walked part by part: containers by named parts, tensors by pieces that fit into the cache.

Every rule about containers lives here, with how a person writes the path to a part, so that the rules about leaves
never see one. Every comparison of tensors is a fold over pieces, so its extra memory is one piece, and a piece that
stays in the processor's cache costs little more than reading its operands once.
"""

from __future__ import annotations

import collections
import dataclasses
import sys
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

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


def is_inexact(value: object) -> TypeGuard[torch.Tensor]:
    """Whether a value is a tensor of rounded numbers, real or complex.

    >>> is_inexact(torch.ones(2)), is_inexact(torch.ones(2).bool()), is_inexact(1.0)
    (True, False, False)
    """
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def returned_nodes(graph: torch.fx.GraphModule) -> dict[str, torch.fx.Node]:
    """The nodes that a graph returns, by the path of each result.

    >>> returned_nodes(gm)
    {'outputs[0]': relu}
    """
    found = leaves(graph.graph.output_node().args[0])
    return {path: leaf for path, leaf in found if isinstance(leaf, torch.fx.Node)}


CHUNK = 1 << 22
"""Elements in a piece, 16 MiB of float32: each piece waits for all threads twice, which costs dearly on a busy machine.

On 1 GiB pairs, seconds for 2^18, 2^20, 2^22 elements: 0.094, 0.083, 0.094 (reading both: 0.066)."""

SMALL = 1 << 19
"""Elements in a piece for rules that need several float64 temporaries, 4 MiB each."""


def pieces(*tensors: torch.Tensor, size: int | None = None) -> Iterator[tuple[torch.Tensor, ...]]:
    """Views that together cover tensors of one shape, each of at most `size` elements.

    Example: `sum((a * b).sum() for a, b in pieces(x, y))` is a dot product with bounded memory.
    """
    if not tensors or tensors[0].numel() == 0:
        return
    flat, size = _flattened(tensors), size or CHUNK
    if flat is not None:
        length = flat[0].numel()
        for start in range(0, length, size):
            stop = min(start + size, length)
            yield tuple(t[start:stop] for t in flat)
        return
    yield from _split(tensors, size)


def _flattened(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
    """One-dimensional views that keep elements paired, when the memory order of all tensors is the same."""
    first = tensors[0]
    if all(t.is_contiguous() for t in tensors):
        return tuple(t.view(-1) for t in tensors)
    if any(t.stride() != first.stride() for t in tensors):
        return None
    order = sorted(range(first.dim()), key=lambda d: -first.stride(d))
    permuted = tuple(t.permute(order) for t in tensors)
    return tuple(t.view(-1) for t in permuted) if permuted[0].is_contiguous() else None


def _split(tensors: tuple[torch.Tensor, ...], size: int) -> Iterator[tuple[torch.Tensor, ...]]:
    first = tensors[0]
    if first.numel() <= size:
        yield tensors
        return
    axis = max(range(first.dim()), key=lambda d: first.shape[d])
    step = max(1, first.shape[axis] * size // first.numel())
    for start in range(0, first.shape[axis], step):
        length = min(step, first.shape[axis] - start)
        yield from _split(tuple(t.narrow(axis, start, length) for t in tensors), size)
