"""Which inputs a run of a graph may write, so that only those have to be copied for it: weights are large, and read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from torchsleuth.torch_core.compare.reference.cloning import clone_inputs, has_plain_memory
from torchsleuth.torch_internals.schemas import may_write, written_arguments


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
