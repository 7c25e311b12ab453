"""The value on every edge of a graph, from one eager run.

A value is kept by reference until something is about to write into its memory; then the memory is copied
first, and both are kept with the steps they were valid at. So a value can be asked for as a later node saw it.
Beyond a limit values move to unlinked memory-mapped files, which the system can page out.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchsleuth.torch_internals.schemas import may_write
from torchsleuth.torch_internals.tensors import has_own_memory

# What a laptop can spare beside the program's own memory; beyond it values go to files.
MOST_BYTES = 2 << 30


class Missing:
    """Stands for a value that is not there: the node never ran, or its result cannot be kept."""


MISSING = Missing()


@dataclass(frozen=True)
class Recording:
    """A graph and what its nodes yielded; `stopped` is the error that ended the run early, if one did."""

    graph: torch.fx.GraphModule
    steps: Mapping[str, int]
    history: Mapping[str, list[tuple[int, Any]]]
    stopped: Exception | None = None
    symbolic: Mapping[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def nodes(self) -> Mapping[str, torch.fx.Node]:
        """The nodes of the graph by name."""
        return {node.name: node for node in self.graph.graph.nodes}

    @functools.cached_property
    def calls(self) -> tuple[str, ...]:
        """The names of the calls of the graph, in order."""
        return tuple(name for name, node in self.nodes.items() if node.op.startswith("call_"))

    @functools.cached_property
    def returned(self) -> frozenset[str]:
        """The names of the nodes that the graph returns."""
        return frozenset(n.name for n in next(iter(reversed(self.graph.graph.nodes))).all_input_nodes)

    def ordered(self, names: Iterable[str]) -> list[torch.fx.Node]:
        """The named nodes in the order of the graph."""
        return [self.nodes[name] for name in sorted(names, key=self.steps.__getitem__)]

    def value(self, name: str, step: int | None = None) -> Any:
        """What a node yielded, as the node at `step` finds it (default: as it was yielded).

        >>> recording.value("relu")
        """
        versions = self.history.get(name)
        if not versions:
            return MISSING
        found = versions[0][1]
        for since, value in versions[1:]:
            if step is None or since >= step:
                break
            found = value
        return found


def record_values(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    symbolic: Mapping[str, Any] | None = None,
    most_bytes: int = MOST_BYTES,
) -> Recording:
    """Runs the graph once in eager and keeps what each node yields; the inputs may be changed by the run.

    `symbolic` holds the symbolic counterparts of results whose sizes are not fixed.

    >>> record_values(gm, [torch.ones(2)]).value("relu")
    """
    steps = {node.name: number for number, node in enumerate(graph.graph.nodes)}
    recorder = _Recorder(graph, steps, most_bytes)
    stopped = None
    try:
        recorder.run(*inputs)
    except Exception as error:
        stopped = error
    return Recording(graph, steps, recorder.history, stopped, dict(symbolic or {}))


class _Recorder(torch.fx.Interpreter):
    def __init__(self, graph: torch.fx.GraphModule, steps: dict[str, int], most_bytes: int) -> None:
        super().__init__(graph)
        self.extra_traceback = False
        self.steps = steps
        self.room = most_bytes
        self.history: dict[str, list[tuple[int, Any]]] = {}
        self.named: dict[int, list[str]] = {}
        # Moving a value to a file would part it from its aliases, which a later write must reach.
        self.may_move = not any(may_write(node) for node in graph.graph.nodes)

    def run_node(self, n: torch.fx.Node) -> Any:
        if n.op == "output":
            return super().run_node(n)
        guarded = self._copies(n) if may_write(n) else []
        result = super().run_node(n)
        step = self.steps[n.name]
        for tensor, version, copy in guarded:
            if tensor._version != version:
                self._split(tensor, copy, step)
        self.history[n.name] = [(step, self._kept(n.name, result))]
        return result

    def _copies(self, node: torch.fx.Node) -> list[tuple[torch.Tensor, int, torch.UntypedStorage]]:
        copies: dict[int, tuple[torch.Tensor, int, torch.UntypedStorage]] = {}
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        for value in _tensors((args, kwargs)):
            if has_own_memory(value):
                storage = value.untyped_storage()
                copies.setdefault(storage.data_ptr(), (value, value._version, storage.clone()))
        return list(copies.values())

    def _split(self, tensor: torch.Tensor, copy: torch.UntypedStorage, step: int) -> None:
        """What was recorded on this memory so far goes to the copy; from this step on the memory speaks."""
        for name in self.named.get(tensor.untyped_storage().data_ptr(), ()):
            since, value = self.history[name][-1]
            self.history[name][-1] = (since, _rehung(value, tensor.untyped_storage(), copy))
            self.history[name].append((step, value))

    def _kept(self, name: str, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            parts = [self._kept(name, item) for item in value]
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        if not isinstance(value, torch.Tensor):
            return value
        if not has_own_memory(value):
            return MISSING
        kept = value.detach().requires_grad_(value.requires_grad) if value.requires_grad else value
        pointer = value.untyped_storage().data_ptr()
        known = pointer in self.named
        self.named.setdefault(pointer, []).append(name)
        if known:
            return kept
        self.room -= value.untyped_storage().nbytes()
        return _on_disk(kept) if self.room < 0 and self.may_move else kept


def _rehung(value: Any, old: torch.UntypedStorage, new: torch.UntypedStorage) -> Any:
    """The value with every tensor on `old` laid over `new` instead."""
    if isinstance(value, (list, tuple)):
        parts = [_rehung(item, old, new) for item in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() == old.data_ptr():
        moved = torch.empty(0, dtype=value.dtype, device=value.device)
        moved.set_(new, value.storage_offset(), value.shape, value.stride())
        return moved.requires_grad_(value.requires_grad)
    return value


def _on_disk(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor on memory that is backed by a file no one else can see."""
    size = tensor.untyped_storage().nbytes()
    handle, path = tempfile.mkstemp(prefix="torchsleuth-values-")
    try:
        os.close(handle)
        flat = torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
    finally:
        os.unlink(path)
    flat.copy_(torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage()))
    moved = torch.empty(0, dtype=tensor.dtype)
    moved.set_(flat.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
    return moved.requires_grad_(tensor.requires_grad)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
