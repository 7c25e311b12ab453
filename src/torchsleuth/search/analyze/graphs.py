"""The analysis of a graph at hand, in this process: what `analyze` does for a case, for whoever holds the graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule

from torchsleuth.core.cases.analysis import Analysis
from torchsleuth.script_runtime.relaxed import with_reshapes
from torchsleuth.search.analyze.answer import analysis_of
from torchsleuth.torch_core.compare.divergence.analysis import Wishes, analyze
from torchsleuth.torch_core.compare.divergence.compiling import aten_ways
from torchsleuth.torch_core.compare.divergence.exposed import analyze_exposed
from torchsleuth.torch_core.compare.divergence.measure import Subject, written_inputs
from torchsleuth.torch_core.compare.divergence.steps import run_once
from torchsleuth.torch_core.compare.reference import opkinds
from torchsleuth.torch_core.compare.reference.cloning import clone_inputs
from torchsleuth.torch_core.compare.reference.rng import RngState, restore_rng, rng_kept
from torchsleuth.torch_core.compare.reference.room import memory_beside
from torchsleuth.torch_core.graphs.provenance import source_line
from torchsleuth.torch_internals.compiled_calls import compiled_anew
from torchsleuth.torch_internals.generated_code import CompiledCode, observed_code


def repro_analyze(gm: GraphModule, inputs: Sequence[Any], *, without: Collection[str] = ()) -> Analysis:
    """Where a graph of aten operators, compiled by Inductor, leaves eager's way on these inputs.

    `without` are phases to leave out: "accumulated", "local", "determinism", "inside", "substitution". Inputs and
    random numbers are left as they were. A compiler that crashes takes this process along: `torchsleuth analyze` of a
    case does not. Used as `print(repro_analyze(gm, [x]).words)`.
    """
    graph = with_reshapes(gm)
    given = list(inputs)
    ways = aten_ways({"is_inference": not any(getattr(value, "requires_grad", False) for value in given)})
    with rng_kept() as state, torch.no_grad(), compiled_anew(), observed_code() as observed:
        compiled = ways.compiled(gm, given)
        code = observed.codes[0] if observed.codes else None
        with memory_beside(lambda: compiled(clone_inputs(given)), given):
            subject = None if code is None else subject_of(graph, given, compiled, code, state)
            if subject is None or not subject.seen:
                why = "its code shows no values" if code is None else code.blind or "its code shows no values"
                parts = analyze_exposed(graph, given, ways, lambda message: None, why)
            else:
                parts = analyze(subject, ways, lambda message: None, Wishes(without))
    return finished(graph, parts)


def subject_of(
    graph: GraphModule,
    inputs: list[Any],
    call: Callable[[list[Any]], Any],
    code: CompiledCode,
    state: RngState,
    fresh: Callable[[], list[Any]] | None = None,
) -> Subject:
    """A compiled aten graph whose nodes have the names of `graph`; every call draws from the random state `state`."""

    def seeded(values: list[Any]) -> Any:
        restore_rng(state)
        return call(values)

    drawn = None
    if any(opkinds.may_draw(node) for node in graph.graph.nodes):
        restore_rng(state)
        drawn = run_once(graph, inputs)
    calls = {node.name for node in graph.graph.nodes if node.op.startswith("call_")}
    names = {name: name for name in code.nodes if name in calls} | written_inputs(graph)
    return Subject(graph, inputs, seeded, code, names, drawn, fresh=fresh)


def finished(graph: GraphModule, parts: dict[str, Any]) -> Analysis:
    """The parts of an answer as an analysis, with the lines that the graph's nodes know."""
    found = {node.name: source_line(node) for node in graph.graph.nodes}
    lines = {name: line for name, line in found.items() if line is not None}
    return replace(analysis_of(parts, lines), complete=True)
