"""Everything a verdict weighs: the float64 truth, eager's result and the rounding noise, leaf by leaf.

The idea: gather first, judge later. Three kinds of run of one captured graph on one set of inputs - eager,
float64, float64 with random roundings - all drawing the same random numbers, become arrays per leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from torchsleuth.compare.reference import opkinds
from torchsleuth.compare.reference.cloning import (
    clone_inputs,
    map_tensors,
    restore,
    same_bits,
    snapshot,
    tensors_in,
)
from torchsleuth.compare.reference.float64 import (
    MEMORY_ERRORS,
    Findings,
    Float64Run,
    any_layout,
    dtypes_of,
    fetch,
    widen,
    widen_graph,
    widen_inputs,
)
from torchsleuth.compare.reference.inlining import inlined
from torchsleuth.compare.reference.rng import RngState, restore_rng, rng_kept
from torchsleuth.compare.reference.trees import leaves
from torchsleuth.compare.verdict.decisions import COMPARE
from torchsleuth.compare.verdict.noise import NoiseSource, noisy_graph
from torchsleuth.torch_internals.schemas import may_write, written_arguments

RUNS = 8
"""Noisy runs: enough that an element's noise is underrated by half once in some thousand elements."""

RUNS_LARGE = 5
"""Noisy runs for large results, where rows of many elements steady the estimate and time matters."""

LARGE = 1 << 18
"""Output elements above which a result is large."""

AMPLIFICATION = 8.0
"""How much stronger the second kind of noise is: it finds decisions that lie within 8 rounding errors."""


MUTATED = " (mutated)"
"""How the path of an input ends whose value after the run is a result of it."""


@dataclass(frozen=True)
class Leaf:
    """One value of the result: its path, eager's value, the truth, and what the noisy runs gave.

    `noisy` are runs with rounding noise, `amplified` runs with stronger noise, `other_decisions` a run that decides
    comparisons the other way where rounding may do so. For float tensors all three hold differences from the truth,
    for everything else values.
    """

    path: str
    eager: Any
    truth: Any
    noisy: tuple[Any, ...]
    amplified: tuple[Any, ...]
    other_decisions: tuple[Any, ...] = ()
    random: bool = False
    fallbacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """All leaves, and what has to be said about how they were obtained."""

    leaves: tuple[Leaf, ...]
    fallbacks: dict[str, str]
    notes: tuple[str, ...]
    runs: int
    has_random: bool
    mutated: tuple[int, ...] = ()


class EagerRun(Interpreter):
    """Run the graph as it is and remember dtypes and what random nodes drew."""

    def __init__(self, graph: GraphModule) -> None:
        super().__init__(graph)
        self.dtypes: dict[str, Any] = {}
        self.drawn: dict[str, Any] = {}

    def call_function(self, target: Any, args: tuple, kwargs: dict) -> Any:
        return super().call_function(any_layout(target), args, kwargs)

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        self.dtypes[n.name] = dtypes_of(value)
        if opkinds.draws(n):
            self.drawn[n.name] = clone_inputs(value)
        return value


@dataclass
class RunResult:
    """What one run produced: leaves by path, mutated inputs included."""

    values: dict[str, Any] = field(default_factory=dict)


def result_of(outputs: Any, inputs: Sequence[Any] = (), mutated: Sequence[int] = ()) -> RunResult:
    """Outputs and the inputs at the given positions as leaves by path."""
    values = dict(leaves(outputs))
    for position in mutated:
        values[f"inputs[{position}]{MUTATED}"] = inputs[position]
    return RunResult(values)


def gather(
    graph: GraphModule, inputs: Sequence[Any], *, runs: int | None = None, start: RngState, seed: int = 0
) -> Evidence:
    """Run the graph in eager, in float64 and `runs` times with noise; inputs and graph stay as they are.

    The noise has generators of its own. Torch's global ones are set and put back only for a graph that may draw from
    them, so that gathering evidence of any other does not touch what another thread draws.
    Example: `gather(graph, inputs, start=save_rng()).leaves[0].truth`.
    """
    graph = inlined(graph)
    draws = any(opkinds.may_draw(n) for n in graph.graph.nodes)
    with rng_kept() if draws else nullcontext(), torch.no_grad():
        eager, recorder, mutated = _run_eager(graph, inputs, start if draws else None)
        if runs is None:
            size = sum(v.numel() for v in eager.values.values() if isinstance(v, torch.Tensor))
            runs = RUNS if size <= LARGE else RUNS_LARGE
        try:
            return _gather_wide(graph, inputs, eager, recorder, mutated, runs, seed, None)
        except MEMORY_ERRORS as error:
            if not torch.cuda.is_initialized():
                raise
            torch.cuda.empty_cache()
            note = (
                f"float64 did not fit on the device ({str(error).splitlines()[0][:80]}); computed on the CPU"
            )
        cpu = torch.device("cpu")
        found = _gather_wide(graph, inputs, eager, recorder, mutated, runs, seed, cpu)
        return Evidence(**{**found.__dict__, "notes": (*found.notes, note)})


def _run_eager(
    graph: GraphModule, inputs: Sequence[Any], start: RngState | None
) -> tuple[RunResult, EagerRun, tuple[int, ...]]:
    state = snapshot(graph_state(graph))
    fresh = clone_inputs(list(inputs))
    recorder = EagerRun(graph)
    if start is not None:
        restore_rng(start)
    outputs = clone_inputs(recorder.run(*fresh))
    mutated = tuple(
        i
        for i, (a, b) in enumerate(zip(inputs, fresh))
        if isinstance(a, torch.Tensor) and not same_bits(a, b)
    )
    result = result_of(outputs, fresh, mutated)
    restore(state)
    return result, recorder, mutated


def graph_state(graph: GraphModule) -> list[torch.Tensor]:
    """The tensors a graph holds: parameters, buffers and constants that its nodes read."""
    held = [fetch(graph, str(n.target)) for n in graph.graph.nodes if n.op == "get_attr"]
    found = [t for t in held if isinstance(t, torch.Tensor)]
    return tensors_in([*found, *graph.parameters(), *graph.buffers()])


def _gather_wide(
    graph: GraphModule,
    inputs: Sequence[Any],
    eager: RunResult,
    recorder: EagerRun,
    mutated: tuple[int, ...],
    runs: int,
    seed: int,
    device: torch.device | None,
) -> Evidence:
    wide = widen_graph(graph, device)
    wide_inputs = widen_inputs(inputs, device)
    draws = _substitutes(graph, recorder, device)
    state = snapshot(graph_state(wide))

    def substitute(node: Node, args: tuple, kwargs: dict) -> Any:
        draw = draws.get(node.name)
        return NotImplemented if draw is None else draw(*args, **kwargs)

    reference = Float64Run(wide, graph, recorder.dtypes, substitute)
    fresh = clone_inputs(wide_inputs)
    truth = result_of(clone_inputs(reference.run(*fresh)), fresh, mutated)
    restore(state)
    findings = reference.findings
    home = device or _device_of(inputs, graph)
    source = NoiseSource(home, seed=seed)
    noisy = noisy_graph(wide, graph, recorder.dtypes, findings, source, draws)
    writes = any(may_write(n) for n in graph.graph.nodes)
    held = graph_state(wide)

    def perturbed(scale: float, count: int) -> list[RunResult]:
        source.scale = scale
        done = []
        for _ in range(count):
            given = clone_inputs(wide_inputs) if writes else wide_inputs
            outputs = noisy(*given)
            # Inputs may lie in one memory, and differences are taken in place.
            after = [each.clone() if place in mutated else each for place, each in enumerate(given)]
            done.append(result_of(_owned(outputs, [given, *held]), after, mutated))
            if writes:
                restore(state)
        return done

    usual = perturbed(1.0, runs)
    jumps = any(opkinds.plain_name(n) in opkinds.DISCRETE for n in graph.graph.nodes)
    amplified = perturbed(AMPLIFICATION, max(2, runs // 2)) if jumps else []
    source.reverse_decisions = True
    decides = any(opkinds.plain_name(n) in COMPARE for n in graph.graph.nodes)
    reverse = perturbed(1.0, 1) if decides else []
    return _assemble(graph, eager, truth, usual, amplified, reverse, findings, mutated)


def _assemble(
    graph: GraphModule,
    eager: RunResult,
    truth: RunResult,
    usual: list[RunResult],
    amplified: list[RunResult],
    reverse: list[RunResult],
    findings: Findings,
    mutated: tuple[int, ...],
) -> Evidence:
    origins = _origins(graph, findings.aliasing)
    drawn = {n.name for n in graph.graph.nodes if opkinds.draws(n)}
    found = []
    for path, value in eager.values.items():
        behind = next((names for prefix, names in origins.items() if path.startswith(prefix)), None)
        if behind is None:
            behind = {n.name for n in graph.graph.nodes}
        base = _finite(truth.values.get(path))
        found.append(
            Leaf(
                path,
                value,
                truth.values.get(path),
                tuple(_difference(r.values.get(path), base) for r in usual),
                tuple(_difference(r.values.get(path), base) for r in amplified),
                tuple(_difference(r.values.get(path), base) for r in reverse),
                bool(behind & drawn),
                tuple(sorted(behind & set(findings.fallbacks))),
            )
        )
    runs = 1 + len(usual) + len(amplified) + len(reverse)
    return Evidence(tuple(found), findings.fallbacks, (), runs, bool(drawn), mutated)


def _owned(outputs: Any, held: list[Any]) -> Any:
    """The outputs, copied where one shares memory with another, with an input or with the graph's constants."""
    given = {t.untyped_storage().data_ptr() for t in tensors_in(held) if t.layout == torch.strided}
    tensors = [t for _, t in leaves(outputs) if isinstance(t, torch.Tensor) and t.layout == torch.strided]
    storages = [t.untyped_storage().data_ptr() for t in tensors]
    shared = len(set(storages)) < len(storages) or not given.isdisjoint(storages)
    views = any(t.numel() * t.element_size() != t.untyped_storage().nbytes() for t in tensors)
    if shared or views:
        return map_tensors(outputs, lambda t: t.clone())
    return outputs


def _finite(truth: Any) -> Any:
    """The truth with zeros where it is not finite, so that a run's difference there is finite if the run is."""
    if not isinstance(truth, torch.Tensor) or truth.layout != torch.strided:
        return truth
    if not (truth.is_floating_point() or truth.is_complex()) or bool(torch.isfinite(truth.sum())):
        return truth
    return torch.where(torch.isfinite(truth), truth, torch.zeros_like(truth))


def _difference(value: Any, truth: Any) -> Any:
    if (
        not isinstance(value, torch.Tensor)
        or not isinstance(truth, torch.Tensor)
        or value.shape != truth.shape
    ):
        return value
    inexact = value.is_floating_point() or value.is_complex()
    if not inexact or value.layout != torch.strided:
        return value
    # Reusing the run's own memory spares the page faults of a fresh block, which cost more than the subtraction.
    return value.sub_(truth) if value.is_contiguous() else value - truth


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
    output = next(n for n in reversed(graph.graph.nodes) if n.op == "output")
    found = {
        path: behind[group[leaf.name]] for path, leaf in leaves(output.args[0]) if isinstance(leaf, Node)
    }
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
    return found | {f"inputs[{i}]": behind[group[n.name]] for i, n in enumerate(placeholders)}


def _substitutes(
    graph: GraphModule, recorder: EagerRun, device: torch.device | None
) -> dict[str, Callable[..., Any]]:
    """For every random node, a function that gives in float64 what eager drew."""
    found = {}
    for node in graph.graph.nodes:
        if node.name in recorder.drawn:
            drawn = recorder.drawn[node.name]
            rate = opkinds.dropout_rate(node)
            value = widen(drawn if device is None else map_tensors(drawn, lambda t: t.to(device)))
            found[node.name] = _constant(value) if rate is None else _masked(value, rate)
    return found


def _constant(value: Any) -> Callable[..., Any]:
    def draw(*args: Any, **kwargs: Any) -> Any:
        return clone_inputs(value)

    return draw


def _masked(value: Any, rate: float) -> Callable[..., Any]:
    """Dropout with the mask that eager drew; an input that is zero anyway hides its own mask harmlessly."""

    def draw(source: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        kept = (value[0] if isinstance(value, tuple) else value) != 0
        scale = 1.0 / (1.0 - rate) if rate < 1.0 else 0.0
        dropped = torch.where(kept, source * scale, torch.zeros_like(source))
        return (dropped, *value[1:]) if isinstance(value, tuple) else dropped

    return draw


def _device_of(inputs: Sequence[Any], graph: GraphModule) -> torch.device:
    for tensor in [*tensors_in(list(inputs)), *graph_state(graph)]:
        if tensor.device.type not in ("cpu", "meta"):
            return tensor.device
    return torch.device("cpu")
