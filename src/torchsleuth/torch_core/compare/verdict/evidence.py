"""Everything a verdict weighs: the float64 truth, eager's result and the rounding noise, leaf by leaf.

The idea: gather first, judge later. Three kinds of run of one captured graph on one set of inputs - eager,
float64, float64 with random roundings - all drawing the same random numbers, become numbers per leaf. Where all
leaves together would take too much memory, a piece of them is gathered and judged at a time.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import GraphModule

from torchsleuth.torch_core.compare.reference import opkinds
from torchsleuth.torch_core.compare.reference.cloning import (
    clone_inputs,
    map_tensors,
    memory_of,
    positions_written,
    restore,
    snapshot,
    tensors_in,
)
from torchsleuth.torch_core.compare.reference.eager import (
    EagerRun,
    OtherDraws,
    Values,
    filled_memory,
    graph_state,
    handed_over,
    inlined,
    of_unwritten_memory,
    result_of,
    run_eager,
    substitutes,
)
from torchsleuth.torch_core.compare.reference.float64 import (
    MEMORY_ERRORS,
    Findings,
    Float64Run,
    Places,
    wide_dtype,
    widen_graph,
    widen_inputs,
    widen_late,
)
from torchsleuth.torch_core.compare.reference.memory import memory_left, trim
from torchsleuth.torch_core.compare.reference.other_ways import equivalent_runs
from torchsleuth.torch_core.compare.reference.rng import Draw, RngState, rng_kept, save_rng
from torchsleuth.torch_core.compare.reference.trees import is_inexact, leaves, returned_nodes
from torchsleuth.torch_core.compare.verdict.leaf import (
    AMPLIFICATION,
    AMPLIFIED,
    EQUIVALENT,
    REVERSED,
    USUAL,
    Leaf,
    Spread,
    largest,
    sampled,
)
from torchsleuth.torch_core.compare.verdict.noise import COMPARE, GATE, NoiseSource, NoisyRun
from torchsleuth.torch_core.compare.verdict.textbook import ALL, FEW, STRONGER, Textbook, TextbookRun
from torchsleuth.torch_internals.schemas import may_write, written_arguments
from torchsleuth.torch_internals.tensors import transforms_ended

RUNS = 8
"""Noisy runs: enough that an element's noise is underrated by half once in some thousand elements."""

RUNS_LARGE = 5
"""Noisy runs for large results, where rows of many elements steady the estimate and time matters."""

LARGE = 1 << 18
"""Output elements above which a result is large."""

SAME_FLOAT64 = 1e-4
"""Of the size of values, and of their noise in the graph's own format: within it two float64 runs count as the same."""

NOISY_SHARE = 0.7
"""Of the memory that a noisy run may take, what the run without noise may."""

BYTES_PER_ELEMENT = 24
"""What is kept of one element of a leaf beside samples: the truth, the size of its noise, how far runs reached."""


@dataclass(frozen=True)
class Evidence:
    """All leaves, and what has to be said about how they were obtained."""

    leaves: tuple[Leaf, ...] = ()
    fallbacks: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    runs: int = 0
    second_opinion: Callable[[Collection[str], bool], Evidence] | None = None
    """The evidence on some leaves by the textbook's yardstick, from few runs or from all; None where this is it."""

    def and_seen_in(self, part: Evidence) -> Evidence:
        """What has to be said about this and about another piece of it, without what they weigh."""
        notes = dict.fromkeys((*self.notes, *part.notes))
        return Evidence((), self.fallbacks | part.fallbacks, tuple(notes), self.runs + part.runs)


@dataclass(frozen=True)
class Reference:
    """One graph on one set of inputs, run in eager: what evidence about its leaves is gathered from."""

    graph: GraphModule
    inputs: Sequence[Any]
    eager: Values
    recorder: EagerRun
    mutated: tuple[int, ...]
    runs: int
    seed: int
    draws: bool
    handed_over: bool = False
    """Whether its random numbers are those that were drawn elsewhere."""
    after: RngState | None = None
    """Where the generators stood after it."""

    @property
    def device(self) -> torch.device:
        """Where the graph runs."""
        for tensor in [*tensors_in(list(self.inputs)), *graph_state(self.graph)]:
            if tensor.device.type not in ("cpu", "meta"):
                return tensor.device
        return torch.device("cpu")

    def bytes_of(self, path: str) -> int:
        """What the evidence on one leaf takes."""
        value = self.eager[path]
        if not isinstance(value, torch.Tensor):
            return 0
        samples = self.runs * sampled(value.shape) * torch.float64.itemsize
        return BYTES_PER_ELEMENT * value.numel() + samples

    def pieces(self) -> list[list[str]]:
        """The paths of all leaves in groups, each so small that the evidence on it fits into memory."""
        budget = memory_left(self.device) // 6  # the rest is for the runs themselves
        parts: list[list[str]] = [[]]
        taken = 0
        for path in self.eager:
            size = self.bytes_of(path)
            if parts[-1] and taken + size > budget:
                parts.append([])
                taken = 0
            parts[-1].append(path)
            taken += size
        return parts


def reference_run(
    graph: GraphModule,
    inputs: Sequence[Any],
    *,
    runs: int | None = None,
    start: RngState,
    seed: int = 0,
    drawn: Sequence[Draw] = (),
) -> Reference:
    """Run the graph in eager, with what was `drawn` elsewhere if it fits; inputs and graph stay as they are.

    The noise has generators of its own. Torch's global ones are set and put back only for a graph that may draw from
    them, so that gathering evidence of any other does not touch what another thread draws.
    Example: `reference_run(graph, inputs, start=save_rng()).pieces()`.
    """
    graph = inlined(graph)
    draws = any(opkinds.may_draw(n) for n in graph.graph.nodes)
    with _generators_kept(draws), torch.no_grad():
        handed = bool(drawn)
        try:
            given = handed_over(graph, drawn) if drawn else None
            eager, recorder, mutated = run_eager(graph, inputs, start if draws else None, given)
        except OtherDraws:
            handed = False
            eager, recorder, mutated = run_eager(graph, inputs, start if draws else None)
        after = save_rng() if draws else None
    if runs is None:
        size = sum(v.numel() for v in eager.values() if isinstance(v, torch.Tensor))
        runs = RUNS if size <= LARGE else RUNS_LARGE
    return Reference(graph, inputs, eager, recorder, mutated, runs, seed, draws, handed, after)


def gather(
    graph: GraphModule, inputs: Sequence[Any], *, runs: int | None = None, start: RngState, seed: int = 0
) -> Evidence:
    """The evidence on every leaf at once, for graphs whose results are not large.

    Example: `gather(graph, inputs, start=save_rng()).leaves[0].truth`.
    """
    return evidence_on(reference_run(graph, inputs, runs=runs, start=start, seed=seed))


def evidence_on(
    reference: Reference, paths: Collection[str] | None = None, textbook: Textbook | None = None
) -> Evidence:
    """Run the graph in float64 and with noise, and keep what is needed to judge the leaves at `paths`, or all.

    With `textbook` the noise is that of the least careful of the accepted ways to compute it, and eager's own other
    ways are among the runs.
    """
    wanted = reference.eager.keys() if paths is None else paths
    whole = reference
    if len(wanted) < len(reference.eager):
        reference = replace(reference, graph=_only(reference.graph, wanted))
    with _generators_kept(reference.draws), torch.no_grad(), transforms_ended():
        try:
            found = _gather_wide(reference, wanted, Places(), textbook)
        except MEMORY_ERRORS as error:
            if not torch.cuda.is_initialized():
                raise
            torch.cuda.empty_cache()
            note = (
                f"float64 did not fit on the device ({str(error).splitlines()[0][:80]}); computed on the CPU"
            )
            places = Places(torch.device("cpu"), reference.device)
            found = _gather_wide(reference, wanted, places, textbook)
            found = replace(found, notes=(*found.notes, note))
    if textbook:
        return found

    @functools.cache  # two results of one graph are mostly doubted alike
    def again(paths: frozenset[str], few: bool) -> Evidence:
        try:
            return evidence_on(whole, paths, FEW if few else ALL)
        except MEMORY_ERRORS:
            raise
        except Exception as error:  # an operator that does not run like this: what was found stands
            why = f"no second opinion: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            return replace(found, leaves=(), notes=(why,))

    return replace(found, second_opinion=lambda paths, few: again(frozenset(paths), few))


def _generators_kept(draws: bool) -> AbstractContextManager[Any]:
    return rng_kept() if draws else nullcontext()


def _only(graph: GraphModule, paths: Collection[str]) -> GraphModule:
    """The graph without the outputs at other paths, and without what only they need."""
    smaller = GraphModule(graph, copy.deepcopy(graph.graph))
    output = smaller.graph.output_node()
    kept = {node for path, node in returned_nodes(smaller).items() if path in paths}
    output.args = (torch.fx.map_arg(output.args[0], lambda n: n if n in kept else None),)
    if not any(may_write(n) for n in smaller.graph.nodes):
        smaller.graph.eliminate_dead_code()
    smaller.recompile()
    return smaller


class _Twin:
    """The float64 twin of a graph, inputs for run after run, and what stands for nodes that draw or ask for memory."""

    def __init__(self, reference: Reference, places: Places) -> None:
        graph = reference.graph
        self.reference = reference
        self.wide = widen_graph(graph, places.device)
        written = positions_written(graph, reference.inputs)
        plain = (is_inexact(v) and not v.is_quantized and v.layout == torch.strided for v in reference.inputs)
        late = [i for i, widens in enumerate(plain) if widens and i not in written]
        widen_late(self.wide, late, places.device)
        # Only what the graph writes needs to be copied for each run, and memory that such inputs share stays shared.
        early = [i for i in range(len(reference.inputs)) if i not in late]
        self.inputs = dict(zip(early, widen_inputs([reference.inputs[i] for i in early], places.device)))
        self.memory = filled_memory(graph, zeros=True)
        self.given = {**substitutes(graph, reference.recorder, places), **self.memory}
        self.writes = any(may_write(n) for n in graph.graph.nodes)
        self.held = graph_state(self.wide)
        self.state = snapshot(self.held) if self.writes else None

    def results(self, run: Float64Run) -> Values:
        """What one run gives, in memory that nothing else reads or writes."""
        copies = clone_inputs(self.inputs) if self.writes else self.inputs
        given = [copies.get(i, value) for i, value in enumerate(self.reference.inputs)]
        outputs = _owned(run.run(*given), [given, *self.held])
        mutated = self.reference.mutated
        # Inputs may lie in one memory, and differences are taken in place.
        after = [each.clone() if place in mutated else each for place, each in enumerate(given)]
        if self.state is not None:
            restore(self.state)
        return result_of(outputs, after, mutated)


def _gather_wide(
    reference: Reference, wanted: Collection[str], places: Places, textbook: Textbook | None
) -> Evidence:
    graph, recorder = reference.graph, reference.recorder
    twin = _Twin(reference, places)
    kept = sum(reference.bytes_of(path) for path in wanted)
    left = memory_left(reference.device) if places.device is None else 0
    # Noisy runs take a little more than the first, and what is kept of them grows meanwhile.
    watch = _memory_watch(reference.device, int(NOISY_SHARE * (left - kept)))
    watch_noisy = _memory_watch(reference.device, left)
    run = Float64Run(twin.wide, graph, recorder.dtypes, twin.given, places, watch)
    truth = twin.results(run)
    unwritten: dict[str, torch.Tensor] = {}
    if twin.memory:
        twin.given |= filled_memory(graph, zeros=False)
        other = Float64Run(twin.wide, graph, recorder.dtypes, twin.given, places, watch)
        unwritten = of_unwritten_memory({path: truth.get(path) for path in wanted}, twin.results(other))
        twin.given |= twin.memory
    run.findings.fallbacks.update(dict.fromkeys(recorder.states, "it mixes random numbers with its inputs"))
    source = NoiseSource(places.device or reference.device, seed=reference.seed, before_each=watch_noisy)
    how = (twin.wide, graph, recorder.dtypes, run.findings, twin.given, places, source)
    by_the_book = TextbookRun(*how) if textbook else None
    noisy = by_the_book or NoisyRun(*how)

    def nothing_seen() -> dict[str, Spread]:
        return {
            path: Spread(truth.get(path), getattr(reference.eager[path], "dtype", None)) for path in wanted
        }

    spreads = nothing_seen()

    def perturbed(kind: str, scale: float, count: int) -> int:
        source.scale = scale
        for _ in range(count):
            values = twin.results(noisy)
            for path in wanted:
                spreads[path].add(values.pop(path, None), kind)
        return count

    runs = textbook.usual if textbook else reference.runs
    made = 1 + bool(twin.memory) + perturbed(USUAL, 1.0, runs)
    if by_the_book is not None:
        source.scale = 0.0
        if not _agree(twin.results(by_the_book), truth, spreads):
            by_the_book.take_whole()
            spreads.update(nothing_seen())
            made += perturbed(USUAL, 1.0, runs)
            source.scale = 0.0
            if not _agree(twin.results(by_the_book), truth, spreads):
                raise RuntimeError("the graph gives something else where each of its operators is watched")
    names = {opkinds.plain_name(n) for n in graph.graph.nodes}
    if names & opkinds.DISCRETE or textbook:
        stronger = (STRONGER, textbook.amplified) if textbook else (AMPLIFICATION, max(2, runs // 2))
        made += perturbed(AMPLIFIED, *stronger)
    source.reverse_decisions = True
    if names & {*COMPARE, GATE} or textbook:
        made += perturbed(REVERSED, 1.0, 1)
    if textbook:
        # Decisions taken together may cancel what one of them alone would change.
        source.reverse_some = True
        made += perturbed(REVERSED, 1.0, textbook.turned)
        for _, result in equivalent_runs(graph, reference.inputs, recorder, reference.device, twin.memory):
            made += 1
            for path in wanted:
                value = result.pop(path, None)
                if isinstance(value, torch.Tensor) and not value.is_quantized:
                    value = value.to(wide_dtype(value.dtype), copy=True)  # it is used up
                spreads[path].add(places.to_device(value), EQUIVALENT)
    return _assemble(reference, wanted, truth, spreads, unwritten, run.findings, made)


def _agree(values: dict[str, Any], truth: dict[str, Any], spreads: dict[str, Spread]) -> bool:
    """Whether operators taken apart give what they give whole, but for the rounding of float64."""
    for path, spread in spreads.items():
        value, wanted = values.get(path), truth.get(path)
        if not isinstance(value, torch.Tensor) or not isinstance(wanted, torch.Tensor):
            continue
        if value.shape != wanted.shape or value.dtype != wanted.dtype:
            return False
        # Where terms cancel, nothing but the noise says how much a difference means.
        size = largest(wanted) if wanted.is_floating_point() else 0.0
        least = SAME_FLOAT64 * max(size, spread.largest)
        if not torch.allclose(value, wanted, SAME_FLOAT64, least, equal_nan=True):
            return False
    return True


def _memory_watch(device: torch.device, more: int) -> Callable[[], None]:
    """Raises when a run on a device takes so many bytes more than now; on the CPU there is nowhere else to go."""
    if device.type != "cuda" or more == 0:
        return lambda: None
    limit = torch.cuda.memory_allocated(device) + more

    def watch() -> None:
        trim(device)
        taken = torch.cuda.memory_allocated(device)
        if taken > limit:
            raise MemoryError(f"it would take more than {limit >> 20} MiB")

    return watch


def _assemble(
    reference: Reference,
    wanted: Collection[str],
    truth: dict[str, Any],
    spreads: dict[str, Spread],
    unwritten: dict[str, torch.Tensor],
    findings: Findings,
    runs: int,
) -> Evidence:
    graph = reference.graph
    origins = _origins(graph, findings.aliasing)
    drawn = {n.name for n in graph.graph.nodes if opkinds.draws(n)}
    empty = {path for path, node in returned_nodes(graph).items() if opkinds.means_nothing(node)}
    everything = {n.name for n in graph.graph.nodes}
    found = []
    for path, value in reference.eager.items():
        if path not in wanted:
            continue
        behind = next((names for prefix, names in origins.items() if path.startswith(prefix)), everything)
        fallbacks = tuple(sorted(behind & set(findings.fallbacks)))
        random = bool(behind & drawn)
        why_not = path in empty, unwritten.get(path)
        overflowing = tuple(name for name in findings.overflowing if name in behind)
        found.append(
            Leaf(path, value, truth.get(path), spreads[path], random, fallbacks, *why_not, overflowing)
        )
    return Evidence(tuple(found), findings.fallbacks, (), runs)


def _owned(outputs: Any, held: list[Any]) -> Any:
    """The outputs, copied where one shares memory with another, with an input or with the graph's constants."""
    given = {memory_of(t) for t in tensors_in(held)}
    tensors = [t for _, t in leaves(outputs) if isinstance(t, torch.Tensor) and t.layout == torch.strided]
    storages = [memory_of(t) for t in tensors]
    shared = len(set(storages)) < len(storages) or not given.isdisjoint(storages)
    views = any(t.numel() * t.element_size() != t.untyped_storage().nbytes() for t in tensors)
    if shared or views:
        return map_tensors(outputs, lambda t: t.clone())
    return outputs


def _origins(graph: GraphModule, aliasing: set[str]) -> dict[str, set[str]]:
    """For every leaf path, the names of all nodes its value depends on.

    Nodes that share memory form one group: a write through any of them reaches all.
    """
    group: dict[str, str] = {}
    behind: dict[str, set[str]] = {}
    for node in graph.graph.nodes:
        names = {node.name}.union(*(behind[group[a.name]] for a in node.all_input_nodes))
        base = node.all_input_nodes[0] if node.name in aliasing and node.all_input_nodes else node
        group[node.name] = group.get(base.name, node.name)
        behind.setdefault(group[node.name], set()).update(names)
        for arg in written_arguments(node):
            behind[group[arg.name]] |= names
    found = {path: behind[group[node.name]] for path, node in returned_nodes(graph).items()}
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
    return found | {f"inputs[{i}]": behind[group[n.name]] for i, n in enumerate(placeholders)}
