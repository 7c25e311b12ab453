"""Copy inputs so that a run on the copy sees what a run on the original would see.

The idea: the unit of copying is the storage, not the tensor. Tensors that share memory share it again
in the copy, with the same strides and offsets; grad-ness, parameter-ness and containers survive too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torchsleuth.script_runtime.inputs import as_computed
from torchsleuth.torch_internals.tensors import form_of

ALIGN = 64
"""Bytes a copied range is aligned down to: keeps offsets whole for every dtype and vector loads aligned."""

StorageKey = tuple[str, int]


@dataclass(frozen=True)
class Snapshot:
    """The tensors of a tree and a copy of their values, in the order `tensors_in` gives them."""

    originals: tuple[torch.Tensor, ...]
    copies: tuple[torch.Tensor, ...]


def map_tensors(tree: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """The same tree with every tensor replaced; lists, tuples, named tuples and dicts are rebuilt.

    Example: `map_tensors([x, (y, 3)], torch.clone)`.
    """
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_tensors(item, change) for item in tree))
    if type(tree) in (list, tuple):
        return type(tree)(map_tensors(item, change) for item in tree)
    if isinstance(tree, torch.Size):
        return tree
    if isinstance(tree, tuple):
        return tuple(map_tensors(item, change) for item in tree)
    if isinstance(tree, list):
        return [map_tensors(item, change) for item in tree]
    if isinstance(tree, dict):
        if type(tree) is dict:
            return {key: map_tensors(item, change) for key, item in tree.items()}
        rebuilt = tree.copy()
        for key, item in tree.items():
            rebuilt[key] = map_tensors(item, change)
        return rebuilt
    return tree


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """The tensors of a tree in order, each object once."""
    found: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        found.setdefault(id(tensor), tensor)
        return tensor

    map_tensors(tree, keep)
    return list(found.values())


def clone_inputs(tree: Any) -> Any:
    """A copy of `tree` with fresh memory and the same aliasing, strides, grad-ness and identities.

    Example: `a = torch.zeros(4); x, y = clone_inputs([a, a[1:]])` - writing to `x` shows in `y`.
    """
    tensors = tensors_in(tree)
    memory = _cloned_storages([t for t in tensors if has_plain_memory(t)])
    clones = {id(t): _clone(t, memory) for t in tensors}
    return map_tensors(tree, lambda t: clones[id(t)])


def snapshot(tree: Any) -> Snapshot:
    """Remember the values of every tensor in `tree`; see `restore` and `changed`."""
    originals = tensors_in(tree)
    copies = tensors_in(clone_inputs(originals))
    return Snapshot(tuple(originals), tuple(copies))


def restore(taken: Snapshot) -> None:
    """Write the remembered values back into the original tensors where they changed."""
    with torch.no_grad():
        for position in changed(taken):
            taken.originals[position].copy_(taken.copies[position])


def changed(taken: Snapshot) -> list[int]:
    """Positions of the tensors whose values are no longer the remembered ones (bit for bit, NaN included)."""
    return [i for i, (now, then) in enumerate(zip(taken.originals, taken.copies)) if not same_bits(now, then)]


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors hold the same values; unlike `torch.equal`, a NaN equals the same NaN."""
    left, right = left.detach(), right.detach()
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if left.is_meta or right.is_meta:  # which have no values
        return left.is_meta and right.is_meta
    if left.numel() == 0 or (left.layout == torch.strided and torch.equal(left, right)):
        return True
    if left.is_quantized:
        return torch.equal(left, right)
    if left.layout != torch.strided:
        left, right = left.to_dense(), right.to_dense()
    # Copied, because a dimension of size 1 may have any stride, and bytes need a stride of 1.
    copies = (t.clone(memory_format=torch.contiguous_format).view(-1) for t in (left, right))
    as_bits = (t.view(torch.uint8) for t in copies)
    return torch.equal(*as_bits)


def has_plain_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor is nothing but elements laid over a storage: `has_plain_memory(torch.ones(2))`."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    return plain and form_of(tensor) == "strided" and tensor.device.type != "meta"


def _key(tensor: torch.Tensor) -> StorageKey:
    return str(tensor.device), tensor.untyped_storage().data_ptr()


def _byte_range(tensor: torch.Tensor) -> tuple[int, int]:
    """First and one-past-last byte of the storage that the tensor can touch."""
    size = tensor.element_size()
    start = tensor.storage_offset() * size
    if tensor.numel() == 0:
        return start, start
    span = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))
    return start, start + (span + 1) * size


def _cloned_storages(tensors: list[torch.Tensor]) -> dict[StorageKey, tuple[torch.UntypedStorage, int]]:
    """For every storage, a copy of the bytes in use and the byte at which that copy starts."""
    ranges: dict[StorageKey, tuple[int, int, torch.UntypedStorage]] = {}
    for tensor in tensors:
        low, high = _byte_range(tensor)
        if low == high:
            continue
        known = ranges.get(_key(tensor), (low, high, tensor.untyped_storage()))
        ranges[_key(tensor)] = (min(low, known[0]), max(high, known[1]), known[2])
    memory = {}
    for key, (low, high, storage) in ranges.items():
        low -= low % ALIGN
        octets = torch.empty(0, dtype=torch.uint8, device=storage.device)
        octets.set_(storage, low, (high - low,), (1,))
        memory[key] = (octets.clone().untyped_storage(), low)
    return memory


def _clone(tensor: torch.Tensor, memory: dict[StorageKey, tuple[torch.UntypedStorage, int]]) -> torch.Tensor:
    if not has_plain_memory(tensor) or tensor.numel() == 0:
        # A clone of a ZeroTensor is not one any more; nothing can be written into it.
        copy = tensor.detach() if form_of(tensor) == "zero" else tensor.detach().clone()
    else:
        storage, low = memory[_key(tensor)]
        offset = tensor.storage_offset() - low // tensor.element_size()
        copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        copy.set_(storage, offset, tensor.shape, tensor.stride())
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(copy, requires_grad=tensor.requires_grad)
    if tensor.requires_grad and not tensor.is_leaf:
        return as_computed(copy)
    return copy.requires_grad_(tensor.requires_grad)
