"""The runs of one compiled graph that tell where it leaves eager's way; each is a stream, of which numbers are kept.

*Accumulated* is how far a value is from the truth in a run as it was: what became visible. *Local* is how far the
kernel that makes it goes off by itself: in a second run each kernel is given eager's values, because what was written
is replaced by eager's as soon as it has been compared. A third run as it was tells what differs from run to run; in a
fourth only the culprit's values are replaced, which shows whether the rest recovers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule

from torchsleuth.torch_core.compare.divergence.distance import Distance, checksum, distance
from torchsleuth.torch_core.compare.divergence.steps import (
    EagerMemory,
    EagerSteps,
    Float64Steps,
    writes_what_is_read,
)
from torchsleuth.torch_core.compare.reference.cloning import clone_inputs, tensors_in
from torchsleuth.torch_core.compare.reference.eager import EagerRun
from torchsleuth.torch_core.compare.reference.float64 import widen_graph
from torchsleuth.torch_core.compare.reference.trees import leaves, returned_nodes
from torchsleuth.torch_core.compare.verdict.leaf import largest
from torchsleuth.torch_internals.generated_code import CompiledCode, Written

MOST_KEPT = 16 << 20
"""Bytes of what the results ought to be that are kept for the next run."""


@dataclass(frozen=True)
class Subject:
    """A compiled graph that can be run: `call` takes a list of inputs, which it may write.

    `inputs` are the values it was called with, which nothing writes; `fresh` makes such a list of them, and is by
    default a copy. `graph` is what eager runs; `node_of` has its node for each node of the compiled graph that stands
    for the same.
    """

    graph: GraphModule
    inputs: Sequence[Any]
    call: Callable[[list[Any]], Any]
    code: CompiledCode
    node_of: Mapping[str, str]
    drawn: EagerRun | None = None
    memory: EagerMemory = field(default_factory=EagerMemory)
    fresh: Callable[[], list[Any]] | None = None

    def run(self) -> Any:
        """What a call of the compiled graph returns."""
        return self.call(clone_inputs(list(self.inputs)) if self.fresh is None else self.fresh())

    @cached_property
    def wide(self) -> GraphModule | None:
        """The graph in float64, for all runs; None where a run may write into its constants."""
        return None if writes_what_is_read(self.graph) else widen_graph(self.graph)

    @property
    def seen(self) -> dict[str, Written]:
        """What can be seen of the compiled run, by the graph's node."""
        return {self.node_of[w.node]: w for w in self.code.written if w.node in self.node_of}

    @property
    def returned(self) -> list[tuple[str, str]]:
        """Path and node of each result of the graph."""
        return [(path, node.name) for path, node in returned_nodes(self.graph).items()]


def written_inputs(graph: GraphModule) -> dict[str, str]:
    """For each input that the graph writes at its end, the node whose value it gets.

    >>> written_inputs(gm)
    {}
    """
    found = {}
    for node in graph.graph.nodes:
        source = node.args[1] if node.target is torch.ops.aten.copy_.default else None
        if isinstance(source, torch.fx.Node) and getattr(node.args[0], "op", "") == "placeholder":
            found[node.args[0].name] = source.name
    inputs = {node.name for node in graph.graph.nodes if node.op == "placeholder"}
    return {name: source for name, source in found.items() if source not in inputs}


class Form(NamedTuple):
    """What a tensor is beside its elements."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Value:
    """One value of the compiled run: which call of which kernel made it, how far it is off, a number for its bits."""

    node: str
    kernel: str
    call: int
    distance: Distance
    form: Form
    bits: int = 0


@dataclass(frozen=True)
class Measured:
    """What one run showed: its values in the order of execution, its results by path, and what was not compared."""

    values: Mapping[str, Value]
    outputs: Mapping[str, Distance]
    fallbacks: Mapping[str, str]
    skipped: Mapping[str, str]
    # Of small results eager's, float64's and how large their terms are: another run need not make them again.
    references: Mapping[str, tuple[Any, Any, float]] | None = None

    @property
    def wrong(self) -> bool:
        """Whether a result is further off than rounding explains."""
        return any(off.far for off in self.outputs.values())


Tick = Callable[[int, int], None]
Keep = Callable[[str, torch.Tensor, torch.Tensor], None]


def accumulated(subject: Subject, tick: Tick, keep: Keep | None = None) -> Measured:
    """How far each value of a run as it was is from the truth; `keep` is given each value and eager's."""
    return _run(subject, tick, forced=(), rebased=False, keep=keep)


def local(subject: Subject, tick: Tick) -> Measured:
    """How far each kernel goes off by itself, given eager's values."""
    return _run(subject, tick, forced=subject.seen, rebased=True)


def substituted(
    subject: Subject, tick: Tick, nodes: Collection[str], first: Measured | None = None
) -> Measured:
    """As `accumulated`, with eager's values in the place of those of `nodes`.

    `first` is what `accumulated` found: where it has kept what the results ought to be, only they are compared.
    """
    known = first.references if first is not None else None
    if known is None:
        return _run(subject, tick, forced=nodes, rebased=False)
    eager = EagerSteps(subject.graph, subject.inputs, nodes, subject.drawn, subject.memory)
    seen: set[str] = set()

    def look(written: Sequence[Written], tensors: Sequence[torch.Tensor]) -> None:
        pairs = {subject.node_of.get(w.node, ""): t for w, t in zip(written, tensors)}
        with torch.no_grad():
            for name in [n for n in eager.nodes if n in pairs and n in nodes and n not in seen]:
                value = eager.value(name)
                if not_comparable(pairs[name], value) is None:
                    pairs[name].copy_(value)
                seen.add(name)
                eager.done(name)
        tick(len(seen), len(nodes))

    out = _call(subject, look)
    return Measured({}, _results(subject.returned, out, known), {}, {})


def differing(subject: Subject, tick: Tick, first: Measured) -> list[dict[str, Any]]:
    """The values that another run as it was makes differently, and how, with the fields of a `RunDifference`."""
    found: dict[str, dict[str, Any]] = {}
    kept: dict[str, torch.Tensor] = {}
    count = 0

    def look(written: Sequence[Written], tensors: Sequence[torch.Tensor]) -> None:
        nonlocal count
        for each, tensor in zip(written, tensors):
            known = first.values.get(subject.node_of.get(each.node, ""))
            if known is None:
                continue
            count += 1
            tick(count, len(first.values))
            now = _form(tensor)
            other = next((n for n, a, b in zip(Form._fields, now, known.form) if a != b), None)
            if other is None and checksum(tensor) != known.bits:
                other = "elements"
                kept[known.node] = tensor.clone()
            if other is not None:
                where = {"node": known.node, "buffer": each.buffer, "kernel": each.kernel}
                found[known.node] = {**where, "field": other}

    _call(subject, look)

    def again(written: Sequence[Written], tensors: Sequence[torch.Tensor]) -> None:
        for each, tensor in zip(written, tensors):
            name = subject.node_of.get(each.node, "")
            before = kept.pop(name, None)
            if before is not None and _form(before) == _form(tensor):
                differ = (before != tensor) & ~((before != before) & (tensor != tensor))
                wide = torch.complex128 if before.is_complex() else torch.float64
                off = largest(tensor.to(wide) - before.to(wide))
                found[name] |= {"elements": int(differ.sum()), "off": off}

    if kept:
        # How far apart two runs are takes a third: of the first, only a number is left for each value.
        _call(subject, again)
    return list(found.values())


def _form(tensor: torch.Tensor) -> Form:
    return Form(tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))


def _call(subject: Subject, look: Any) -> Any:
    subject.code.look = look
    try:
        return subject.run()
    finally:
        subject.code.look = None


def _run(
    subject: Subject, tick: Tick, *, forced: Collection[str], rebased: bool, keep: Keep | None = None
) -> Measured:
    returned = subject.returned
    results_of = {name for _, name in returned}
    names = subject.seen
    wanted = {*names, *results_of}
    given = subject.inputs
    eager = EagerSteps(subject.graph, given, wanted, subject.drawn, subject.memory)
    truth = Float64Steps(subject.graph, given, wanted, eager.dtypes, subject.drawn, subject.wide)
    order = {name: place for place, name in enumerate(eager.nodes)}
    values: dict[str, Value] = {}
    skipped: dict[str, str] = {}

    def compare(each: Written, compiled: torch.Tensor) -> tuple[str, torch.Tensor] | None:
        name = subject.node_of[each.node]
        known = eager.value(name)
        why = not_comparable(compiled, known)
        if why is not None:
            skipped[name] = why
            return None
        found = distance(compiled, known, truth.value(name), eager.terms(name))
        bits = 0 if rebased else checksum(compiled)
        values[name] = Value(name, each.kernel, each.call, found, _form(compiled), bits)
        if keep is not None:
            keep(name, compiled, known)
        return name, known

    def look(written: Sequence[Written], tensors: Sequence[torch.Tensor]) -> None:
        # An input that is written may hold a value that was seen in a buffer before.
        known = ((w, t) for w, t in zip(written, tensors) if w.node in subject.node_of)
        pairs = [(w, t) for w, t in known if subject.node_of[w.node] not in values]
        pairs.sort(key=lambda pair: order[subject.node_of[pair[0].node]])
        with torch.no_grad():
            for each, compiled in pairs:
                found = compare(each, compiled)
                if found is not None and found[0] in forced:
                    compiled.copy_(found[1])
            for each, _ in pairs:
                name = subject.node_of[each.node]
                if rebased and name in values:
                    truth.rebase(name, eager.value(name))
                for steps in (eager, truth):
                    if name not in results_of:
                        steps.done(name)
        tick(len(values), len(names))

    out = _call(subject, look)
    with torch.no_grad():
        references = {name: (eager.value(name), truth.value(name), eager.terms(name)) for name in results_of}
    results = _results(returned, out, references)
    dropped = "there is not enough memory to keep eager's value until the compiled run comes to it"
    skipped |= dict.fromkeys(eager.dropped - values.keys(), dropped)
    small = sum(t.numel() * t.element_size() for t in tensors_in(list(references.values()))) <= MOST_KEPT
    return Measured(values, results, truth.fallbacks, skipped, references if small and not rebased else None)


def _results(
    returned: Sequence[tuple[str, str]], out: Any, references: Mapping[str, tuple[Any, Any, float]]
) -> dict[str, Distance]:
    outputs = dict(leaves(out if isinstance(out, (list, tuple)) else [out]))
    found = {}
    with torch.no_grad():
        for path, name in returned:
            compiled = outputs.get(path if path in outputs else f"{path}[0]")
            known, truth, terms = references[name]
            if isinstance(compiled, torch.Tensor) and not_comparable(compiled, known) is None:
                found[path] = distance(compiled.detach(), known, truth, terms)
    return found


def not_comparable(compiled: torch.Tensor, eager: Any) -> str | None:
    """Why a compiled value cannot be held against eager's: `not_comparable(x, None)`."""
    if eager is None:
        return "eager's value was let go for want of memory"
    if not isinstance(eager, torch.Tensor):
        return f"eager has {type(eager).__name__} there"
    if eager.layout != torch.strided or eager.is_quantized:
        return "eager's value has no plain memory"
    if compiled.shape != eager.shape or compiled.dtype != eager.dtype:
        return "the compiled graph keeps it in another shape or dtype"
    return None
