"""The value on every edge of a graph, from one eager run, as data that another process can cut the graph with.

A value is kept by reference until something is about to write into its memory; then the memory is copied
first, and both are kept with the steps they were valid at. So a value can be asked for as a later node saw it.
What a recording holds of a tensor is its description; the bytes come from `load`, here or from a tensor store.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from torchsleuth.core.protocol.codec import Document
from torchsleuth.script_runtime.inputs import read_storage, view_storage
from torchsleuth.torch_core.graphs.spelling import Unprintable, Vocabulary, expression
from torchsleuth.torch_core.tensors import (
    REBUILT_FORMS,
    ScalarSpec,
    StorageWriter,
    SymbolSpec,
    TensorSpec,
    Unsupported,
    as_in_memory,
    describe_scalar,
    describe_tensor,
    memory_of,
    plain,
    tensor_spec,
)
from torchsleuth.torch_internals.schemas import may_write
from torchsleuth.torch_internals.tensors import (
    detached_leaf,
    form_of,
    has_own_memory,
    values_in_memory,
    with_memory,
)

# What a laptop can spare beside the program's own memory; beyond it values go to files.
MOST_BYTES = 2 << 30
_PLAIN = (
    *(int, float, bool, complex, str, type(None), type(Ellipsis), slice),
    *(torch.dtype, torch.device, torch.layout, torch.Size, torch.memory_format),
)


class Opaque:
    """Stands for a value that no input can carry: a tuple of tensors, a context, or one that never was."""


OPAQUE = Opaque()


@dataclass(frozen=True)
class RecordedTensor:
    """A tensor that a node yielded: what it looks like, which memory it lies in, and which object it was."""

    spec: TensorSpec
    memory: int
    identity: int


# What a node yielded, as a cut needs it: a tensor, a symbolic number, a plain value, or nothing that can be carried.
Recorded = RecordedTensor | ScalarSpec | Opaque | object


@dataclass(frozen=True)
class Recording:
    """A graph and what its nodes yielded; `stopped` says what ended the run early, if something did.

    `history` has the values of each node with the steps from which they held; `load` brings back a tensor, on the CPU.
    """

    graph: torch.fx.GraphModule
    history: Mapping[str, Sequence[tuple[int, Recorded]]]
    load: Callable[[RecordedTensor], torch.Tensor]
    symbols: Mapping[str, SymbolSpec] = field(default_factory=dict)
    stopped: str | None = None

    @functools.cached_property
    def steps(self) -> Mapping[str, int]:
        """The place of each node in the graph."""
        return {node.name: number for number, node in enumerate(self.graph.graph.nodes)}

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

    def value(self, name: str, step: int | None = None) -> Recorded:
        """What a node yielded, as the node at `step` finds it (default: as it was yielded)."""
        versions = self.history.get(name)
        if not versions:
            return OPAQUE
        found = versions[0][1]
        for since, value in versions[1:]:
            if step is None or since >= step:
                break
            found = value
        return found


def record_values(
    graph: torch.fx.GraphModule,
    inputs: Sequence[object],
    *,
    symbolic: Mapping[str, object] | None = None,
    most_bytes: int = MOST_BYTES,
) -> Recording:
    """Runs the graph once in eager and keeps what each node yields; the inputs may be changed by the run.

    `symbolic` holds the symbolic counterparts of results whose sizes are not fixed.
    """
    steps = {node.name: number for number, node in enumerate(graph.graph.nodes)}
    recorder = _Recorder(graph, steps, most_bytes)
    stopped = None
    try:
        recorder.run(*inputs)
    except Exception as error:
        stopped = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return _described(graph, recorder.history, symbolic or {}, stopped)


def describe_values(graph: torch.fx.GraphModule, values: Mapping[str, object]) -> Recording:
    """A recording of values that were worked out in another way; fake ones describe themselves."""
    steps = {node.name: number for number, node in enumerate(graph.graph.nodes)}
    return _described(graph, {name: [(steps[name], value)] for name, value in values.items()}, values, None)


def _described(
    graph: torch.fx.GraphModule,
    values: Mapping[str, Sequence[tuple[int, object]]],
    symbolic: Mapping[str, object],
    stopped: str | None,
) -> Recording:
    described = _Description(symbolic)
    history = {
        name: [(since, described.of(name, value)) for since, value in versions]
        for name, versions in values.items()
    }
    return Recording(graph, history, described.load, described.symbols, stopped)


class _Description:
    """Describes values one after the other, and holds on to the tensors."""

    def __init__(self, symbolic: Mapping[str, object]) -> None:
        self.symbolic = symbolic
        self.symbols: dict[str, SymbolSpec] = {}
        self.tensors: dict[int, torch.Tensor] = {}
        self.memories: dict[object, int] = {}

    def of(self, name: str, value: object) -> Recorded:
        fake = self.symbolic.get(name)
        try:
            if isinstance(value, torch.Tensor):
                spec = describe_tensor(value, fake, self.symbols)
                memory = self.memories.setdefault(memory_of(value), len(self.memories))
                self.tensors[id(value)] = value
                return RecordedTensor(spec, memory, id(value))
            if isinstance(fake, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                return describe_scalar(value, fake, self.symbols)
        except Unsupported:
            return OPAQUE
        return value if _is_plain(value) else OPAQUE

    def load(self, recorded: RecordedTensor) -> torch.Tensor:
        return self.tensors[recorded.identity]


def _is_plain(value: object) -> bool:
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return all(_is_plain(item) for item in value)
    return isinstance(value, _PLAIN)


def recording_to_json(recording: Recording, store: StorageWriter | None) -> dict[str, object]:
    """A recording as a message; the bytes of its tensors go to `store`, where there is one.

    `recording_from_json(recording_to_json(recording, writer), graph, folder)` cuts as the recording itself does.
    """
    kept: dict[int, str] = {}

    def written(value: Recorded) -> dict[str, object]:
        if isinstance(value, RecordedTensor):
            values = values_in_memory(recording.load(value)) if store is not None else None
            if store is not None and values is not None and value.memory not in kept:
                kept[value.memory] = store.write_storage(values)
            spec = replace(value.spec, storage=kept.get(value.memory))
            return {"tensor": plain(vars(spec)), "memory": value.memory, "identity": value.identity}
        if isinstance(value, ScalarSpec):
            return {"symbolic": asdict(value)}
        try:
            return (
                {"opaque": True} if value is OPAQUE else {"plain": expression(value, {}, Vocabulary(set()))}
            )
        except Unprintable:
            return {"opaque": True}

    return {
        "history": {n: [(since, written(v)) for since, v in vs] for n, vs in recording.history.items()},
        "symbols": {name: asdict(symbol) for name, symbol in recording.symbols.items()},
        "stopped": recording.stopped,
    }


def recording_from_json(doc: Document, graph: torch.fx.GraphModule, folder: Path) -> Recording:
    """The recording of a graph that another process ran; its tensors lie in the store `folder`."""

    def read(value: Document) -> Recorded:
        if "tensor" in value:
            return RecordedTensor(tensor_spec(value["tensor"]), value["memory"], value["identity"])
        if "symbolic" in value:
            return ScalarSpec(**value["symbolic"])
        return eval(value["plain"], dict(_PLAIN_SCOPE)) if "plain" in value else OPAQUE

    def load(recorded: RecordedTensor) -> torch.Tensor:
        digest = recorded.spec.storage
        assert digest is not None
        storage = read_storage(str(folder / "storages" / f"{digest}.safetensors"), digest)
        return view_storage({**as_in_memory(asdict(recorded.spec)), "device": "cpu"}, storage)

    return Recording(
        graph,
        {name: [(since, read(v)) for since, v in versions] for name, versions in doc["history"].items()},
        load,
        {name: SymbolSpec(**symbol) for name, symbol in doc["symbols"].items()},
        doc["stopped"],
    )


_PLAIN_SCOPE = {"torch": torch, "inf": float("inf"), "nan": float("nan")}


class _Recorder(torch.fx.Interpreter):
    def __init__(self, graph: torch.fx.GraphModule, steps: dict[str, int], most_bytes: int) -> None:
        super().__init__(graph)
        self.extra_traceback = False
        self.steps = steps
        self.given = {node.name for node in graph.graph.nodes if node.op == "placeholder"}
        self.bytes_left = most_bytes
        self.history: dict[str, list[tuple[int, object]]] = {}
        self.named: dict[int, list[str]] = {}
        # Moving a value to a file would part it from its aliases, which a later write must reach.
        self.may_move = not any(may_write(node) for node in graph.graph.nodes)

    def run_node(self, n: torch.fx.Node) -> object:
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
            if name in self.given and form_of(value) in REBUILT_FORMS:
                return value
            if form_of(value) != "zero":
                return OPAQUE
        value = with_memory(value)
        kept = detached_leaf(value) if value.requires_grad else value
        pointer = value.untyped_storage().data_ptr()
        known = pointer in self.named
        self.named.setdefault(pointer, []).append(name)
        if known:
            return kept
        self.bytes_left -= value.untyped_storage().nbytes()
        return _on_disk(kept) if self.bytes_left < 0 and self.may_move else kept


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
        flat = torch.from_file(path, shared=True, size=size, dtype=torch.uint8, device="cpu")
    finally:
        os.unlink(path)
    flat.copy_(torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage()))
    moved = torch.empty(0, dtype=tensor.dtype, device="cpu")
    moved.set_(flat.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
    return moved.requires_grad_(tensor.requires_grad)


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
