"""Copy inputs so that a run on the copy sees what a run on the original would see.

The idea: the unit of copying is the storage, not the tensor. Tensors that share memory share it again
in the copy, with the same strides and offsets; grad-ness, parameter-ness and containers survive too.
Weights are large, and most graphs only read them: `positions_written` says which inputs have to be copied for a run,
and `KeptCopies` gives a copy taken once to call after call, as long as the tensor still has its bits.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule

from torchsleuth.script_runtime.inputs import as_computed
from torchsleuth.torch_core.tensors import reach
from torchsleuth.torch_internals.schemas import may_write, written_arguments
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
    if isinstance(tree, (list, tuple)) and not isinstance(tree, torch.Size):
        items = [map_tensors(item, change) for item in tree]
        if hasattr(tree, "_fields"):
            return type(tree)(*items)
        return tuple(items) if isinstance(tree, tuple) else items
    if isinstance(tree, dict):
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
    """Remember the values of every tensor in `tree`, for `restore`."""
    originals = tensors_in(tree)
    copies = tensors_in(clone_inputs(originals))
    return Snapshot(tuple(originals), tuple(copies))


def restore(taken: Snapshot) -> None:
    """Write the remembered values back into the original tensors where they changed (bit for bit, NaN included)."""
    with torch.no_grad():
        for now, then in zip(taken.originals, taken.copies):
            if not same_bits(now, then):
                now.copy_(then)


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
    return start, start + reach(tensor.shape, tensor.stride()) * size


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


def positions_written(graph: GraphModule, inputs: Sequence[Any]) -> set[int]:
    """Which inputs the graph may write, those that share memory with one included; all, where that is not told.

    >>> positions_written(gm, [torch.ones(2)])
    set()
    """
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
    writers = [n for n in graph.graph.nodes if may_write(n)]
    if not writers:
        return set()
    if any(n.op == "call_module" or n.target is not torch.ops.aten.copy_.default for n in writers):
        return set(range(len(inputs)))
    targets = {arg for n in writers for arg in written_arguments(n)}
    if not targets <= set(placeholders):
        return set(range(len(inputs)))
    written = {i for i, n in enumerate(placeholders) if n in targets}
    memory = {memory_of(inputs[i]) for i in written} - {0}
    return written | {i for i, value in enumerate(inputs) if memory_of(value) in memory}


def for_one_run(graph: GraphModule, inputs: Sequence[Any]) -> list[Any]:
    """Inputs for one run of the graph by eager's kernels: copies of those that it may write, the others themselves.

    Used as `gm(*for_one_run(gm, inputs))`.
    """
    written = sorted(positions_written(graph, inputs))
    copies = dict(zip(written, clone_inputs([inputs[i] for i in written])))
    return [copies.get(i, value) for i, value in enumerate(inputs)]


def alone_in_memory(values: Sequence[Any]) -> list[int]:
    """The positions of plain tensors with whose memory no other of the values has to do.

    >>> alone_in_memory([torch.ones(2), 3])
    [0]
    """
    shared = Counter(map(memory_of, values))
    alone = [i for i, value in enumerate(values) if memory_of(value) and shared[memory_of(value)] == 1]
    return [i for i in alone if has_plain_memory(values[i])]


def memory_of(value: Any) -> int:
    """The address of a tensor's memory, whatever view of it the tensor is; 0 where there is none.

    >>> memory_of(3)
    0
    """
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.device.type == "meta":
        return 0
    try:
        return value.untyped_storage().data_ptr()
    except RuntimeError:  # a subclass that wraps other tensors
        return 0


Place = tuple[Any, ...]


class KeptCopies:
    """Copies of the values that a graph is given, which nobody may write; those of `taken` are at hand.

    Used as `KeptCopies(snapshot(weights)).of([x, *weights])`.
    """

    def __init__(self, taken: Snapshot) -> None:
        self._of_weights = {
            _place(t): c for t, c in zip(taken.originals, taken.copies) if has_plain_memory(t)
        }
        self._known = dict(self._of_weights)

    def of(self, values: Sequence[Any], most: Callable[[torch.device], float] | None = None) -> list[Any]:
        """For each value one like it, in memory of its own; raises a `MemoryError` where that takes more bytes of a
        device than `most` says."""
        found = {place: self._at_hand(values[place]) for place in alone_in_memory(values)}
        rest = [place for place in range(len(values)) if found.get(place) is None]
        sizes: Counter[torch.device] = Counter()
        for tensor in tensors_in([values[place] for place in rest]):
            sizes[tensor.device] += tensor.numel() * tensor.element_size()
        for device, size in sizes.items():
            if most is not None and size > most(device):
                raise MemoryError(f"of its values {size >> 20} MB would have to be copied")
        found |= dict(zip(rest, clone_inputs([values[place] for place in rest])))
        return [found[place] for place in range(len(values))]

    def weights_among(self, values: Sequence[Any]) -> list[int]:
        """The positions of those of which a copy was at hand from the beginning."""
        return [place for place in alone_in_memory(values) if _place(values[place]) in self._of_weights]

    @contextlib.contextmanager
    def remembered(self, values: Sequence[Any], copies: Sequence[Any]) -> Iterator[None]:
        """Inside, these copies are at hand, too: for the graphs that are made of one."""
        pairs = {_place(values[place]): copies[place] for place in alone_in_memory(values)}
        self._known |= pairs
        try:
            yield
        finally:
            for place, copy in pairs.items():
                if self._known.get(place) is copy:
                    del self._known[place]
            self._known = {**self._of_weights, **self._known}

    def _at_hand(self, value: torch.Tensor) -> torch.Tensor | None:
        copy = self._known.get(_place(value))
        computed = value.requires_grad and not value.is_leaf
        if copy is None or computed or not same_bits(value, copy):
            return None
        if isinstance(value, torch.nn.Parameter):
            return torch.nn.Parameter(copy.detach(), requires_grad=value.requires_grad)
        return copy.detach().requires_grad_(value.requires_grad)


@contextlib.contextmanager
def called_again(
    live: Sequence[Any], before: Sequence[Any], weights: Sequence[int]
) -> Iterator[Callable[[], list[Any]]]:
    """Makes the inputs of one more call: the model's own weights as they lie in memory, the others as copies.

    Whatever a call writes into weights is taken back before the next, and at the end. Used as
    `with called_again(given, copies, weights) as fresh: compiled(fresh())`.
    """
    at_end = [copy if same_bits(live[i], copy) else live[i].clone() for i in weights for copy in (before[i],)]

    def fresh() -> list[Any]:
        _put([live[i] for i in weights], [before[i] for i in weights])
        others = [i for i in range(len(live)) if i not in weights]
        given = dict(zip(others, clone_inputs([before[i] for i in others])))
        return [given[i] if i in given else live[i] for i in range(len(live))]

    try:
        yield fresh
    finally:
        _put([live[i] for i in weights], at_end)


def _put(tensors: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Gives tensors these values where they have others; autograd, which may have kept them, is not told."""
    with torch.no_grad():
        for tensor, value in zip(tensors, values):
            if not same_bits(tensor, value):
                tensor.data.copy_(value)


def _place(tensor: torch.Tensor) -> Place:
    """What two tensors have in common that are the same elements of the same memory."""
    layout = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
    return (tensor.device, memory_of(tensor), *layout)
