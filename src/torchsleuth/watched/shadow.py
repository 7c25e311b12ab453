"""Checks a compiled graph's result against eager, in the call that the program itself makes.

The program's call runs once, on its own inputs, and its result is what the program gets. Eager runs beside it
on copies taken before, with the same random numbers; the verdict of `compare` says whether they differ.

Where a compiler gives one tensor and eager several, or the other way, the numbers are the same and mostly nobody
notices. What is done to one of them afterwards, though, is then done to another one as well: a size, an attribute, a
flag. So that is no finding, but a reason to look at what the call as a whole leaves behind (`whole_calls`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from torchsleuth.core.cases.record import GraphRecord
from torchsleuth.core.protocol.failures import Remark
from torchsleuth.core.watching import Settings
from torchsleuth.script_runtime.relaxed import with_reshapes
from torchsleuth.torch_core.compare.reference.cloning import clone_inputs, same_bits
from torchsleuth.torch_core.compare.reference.eager import MUTATED, EagerRun, OtherDraws, handed_over, inlined
from torchsleuth.torch_core.compare.reference.memory import copies_counted, memory_counted_apart
from torchsleuth.torch_core.compare.reference.opkinds import may_draw
from torchsleuth.torch_core.compare.reference.rng import (
    Draw,
    RngState,
    noting_draws,
    restore_rng,
    rng_kept,
    save_rng,
)
from torchsleuth.torch_core.compare.reference.trees import leaves, pieces
from torchsleuth.torch_core.compare.verdict.gradients import judge_gradients, path_of_joint
from torchsleuth.torch_core.compare.verdict.judge import judge_results
from torchsleuth.torch_core.compare.verdict.verdict import DIVERGED, WITHIN_NOISE, Verdict
from torchsleuth.torch_internals.schemas import may_write
from torchsleuth.torch_internals.tensors import transforms_ended
from torchsleuth.watched import failures

if TYPE_CHECKING:
    from torchsleuth.watched.guard import GuardedGraph


# ---- which outputs are one tensor


Values = tuple[Any, Any]  # inputs and outputs of one call of a graph


@dataclass(frozen=True)
class MergedOutputs:
    """A graph with such outputs: for which backend, and the user's line that made the last of them."""

    backend: str
    line: tuple[str, int] | None = None


def merged_outputs(
    record: GraphRecord, graph: torch.fx.GraphModule, eager: Values, compiled: Values
) -> MergedOutputs | None:
    """What is to know of a graph whose tensors are others than eager's; None where they are the same ones."""
    expected, seen = _firsts(eager), _firsts(compiled)
    if expected == seen:
        return None
    results = {path: str(node) for path, node in leaves(graph.graph.output_node().args[0])}
    apart = [path for path in expected if expected[path] != seen.get(path)]
    ones = {expected[path] for path in apart} | {seen.get(path) for path in apart}
    names = {results.get(path) for path in expected if ones & {expected[path], seen.get(path)}}
    # Of those that are one tensor the last one made is the alias.
    made = [record.nodes[node.name] for node in graph.graph.nodes if node.name in names & record.nodes.keys()]
    line = (made[-1].file, made[-1].line) if made else None
    return MergedOutputs(record.settings.backend, line)


def _firsts(values: Values) -> dict[str, str]:
    """For each tensor among the outputs, where that very tensor is met first.

    >>> x = torch.ones(2)
    >>> _firsts(([x], (x, x + 1)))
    {'outputs[0]': 'inputs[0]', 'outputs[1]': 'outputs[1]'}
    """
    met: dict[int, str] = {}
    found: dict[str, str] = {}
    for label, each in zip(("inputs", "outputs"), values):
        for path, value in leaves(each, label):
            if isinstance(value, torch.Tensor):
                first = met.setdefault(id(value), path)
                if label == "outputs":
                    found[path] = first
    return found


def component_of(merged: Sequence[MergedOutputs], file: str) -> tuple[str, int | None]:
    """Who merges the outputs of these graphs of one call, and the line in the user's `file` that shows it, if known.

    >>> component_of([MergedOutputs("inductor", ("model.py", 7))], "model.py")
    ('inductor', 7)
    """
    backend = merged[0].backend
    # Inductor changes graphs before they come to its inner compiler; which of the two it is, runs of the call tell.
    torchs = {"inductor": "inductor", "aot_eager": "aot_autograd"}
    lines = [
        each.line[1]
        for each in merged
        if each.line and os.path.abspath(each.line[0]) == os.path.abspath(file)
    ]
    return torchs.get(backend, "backend"), lines[0] if lines else None


# ---- the result of a graph


# Some wrong results show from the second call on only: stale buffers, recorded CUDA graphs.
CHECKED_CALLS = 3
# Units in the last place that fused and unfused code may differ by; beyond that the graph's noise is measured.
LAST_BITS = 2


def is_due(settings: Settings, calls: int) -> bool:
    """Whether the `calls`-th call of a graph is one to check.

    >>> is_due(Settings(spool="", level=4), 1), is_due(Settings(spool="", level=4), 50)
    (True, False)
    """
    if not settings.checks_accuracy:
        return False
    if settings.check_every:
        return calls % settings.check_every == 1 % settings.check_every
    return calls <= CHECKED_CALLS


def checked_call(
    graph: GuardedGraph, compiled: Callable[[list[Any]], Any], args: list[Any], inner: bool
) -> Any:
    """Makes the program's call and judges its result; what the program gets is what the call returned."""
    held = list(args)
    before: list[Any] | None = None
    state: RngState | None = None
    drawn = graph.watch.drawn
    if not inner:
        drawn.clear()  # of a call that raised
    known_draws = len(drawn)
    notes = inner and graph.eager is not None and any(may_draw(n) for n in graph.eager.graph.nodes)
    with copies_counted(held):
        with graph.watch.our_own_work():
            before, state = clone_inputs(held), save_rng()
            graph.held.take_values()
        failed_before = graph.flight.failed
        with noting_draws(drawn) if notes else nullcontext():
            result = compiled(args)
        own_draws = drawn[known_draws:]
        if not inner or graph.record.facts.settings.direction == "backward":
            del drawn[known_draws:]  # nobody else asks for them, and masks are as large as values
        known = not inner and graph.record.facts.compile_id in graph.watch.wrong_inside
        if before is None or state is None or known or graph.flight.failed != failed_before:
            return result  # a graph inside this one is to blame, and has been
        with memory_counted_apart(held):
            with graph.watch.our_own_work(), rng_kept() as after:
                found = _wrong_result(graph, before, Numbers(state, after, own_draws), result, held)
                if found is not None:
                    verdict, far = found
                    _report(graph, verdict, _diverged(verdict), far, before)
                    facts = graph.record.facts
                    if inner and facts.compile_id is not None and facts.settings.direction == "forward":
                        # What is captured around it is wrong with it, also in calls in which this is not checked.
                        graph.watch.wrong_inside.add(facts.compile_id)
            if not inner and graph.flight.failed == failed_before and _trains(result):
                _check_gradients(graph, compiled, before, state)
    return result


def _note(graph: GuardedGraph, verdict: Verdict) -> None:
    """A line in the log for every verdict; what is neither right nor wrong is shown when the program has ended."""
    facts = graph.record.facts
    graph.flight.log(f"graph {facts.number}: {verdict.kind}: {verdict.sentence}")
    if verdict.kind in (WITHIN_NOISE, DIVERGED):
        return
    worst = max(
        (leaf for leaf in verdict.leaves if leaf.kind == verdict.kind),
        key=lambda leaf: leaf.z or 0.0,
        default=None,
    )
    graph.flight.remark(
        Remark(
            graph=facts.number,
            direction=facts.settings.direction,
            function=facts.function,
            kind=verdict.kind,
            sentence=verdict.sentence,
            output=worst.path if worst else None,
            times_eager=min(worst.rmse_ratio, 1e9) if worst and worst.rmse_ratio else 1.0,
        )
    )


@dataclass(frozen=True)
class Numbers:
    """The random numbers of one call: where the generators stood before and after it, and what graphs of it drew."""

    before: RngState
    after: RngState
    drawn: list[Draw]


def _wrong_result(
    graph: GuardedGraph, before: list[Any], numbers: Numbers, result: Any, after: Sequence[Any]
) -> tuple[Verdict, dict[str, float]] | None:
    """What is wrong with a result, judged against the graph run in eager and in float64, and how far each leaf is from
    eager; None where nothing is."""
    assert graph.eager is not None
    if graph.record.facts.settings.direction == "backward":
        after = ()  # activations saved for the backward are its own: compiled code may reuse their memory
    eager = with_reshapes(graph.eager)
    try:
        expected, values = _in_eager(eager, before, numbers)
    except Exception as error:  # a hook on a gradient, say: this run is without any
        number = graph.record.facts.number
        graph.flight.log(f"graph {number}: not compared, as it does not run here: {failures.describe(error)}")
        return None
    merged = (
        merged_outputs(graph.record.facts, graph.eager, (values, expected), (after, result))
        if after
        else None
    )
    if merged is not None:
        graph.watch.whole_calls.merged.append(merged)
    apart = _differences((expected, values if after else ()), (result, after))
    del values
    if not apart:
        return None
    verdict = judge_results(
        eager,
        before,
        expected,
        result,
        mutated_inputs_after=after or None,
        rng_state=numbers.before,
        rng_after=numbers.after,
        drawn=numbers.drawn,
    )
    _note(graph, verdict)
    return (verdict, apart) if verdict.diverged else None


def _diverged(verdict: Verdict) -> list[str]:
    return [leaf.path for leaf in verdict.leaves if leaf.kind == DIVERGED]


def _report(
    graph: GuardedGraph,
    verdict: Verdict,
    wrong: Sequence[str],
    far: Mapping[str, float],
    before: Sequence[Any],
) -> None:
    """A result of which `wrong` is wrong becomes a failure on disk; `far` is how far from eager leaves were."""
    detail = {
        "sentence": str(verdict),
        "verdict": verdict.to_json(),
        "tolerances": tolerances_again(far, wrong),
    }
    failures.report_wrong_result(graph.watch, graph.flight, graph.record, wrong, detail, before)


def _in_eager(graph: torch.fx.GraphModule, before: list[Any], numbers: Numbers) -> tuple[Any, list[Any]]:
    """What the graph gives in eager, with the random numbers of the compiled code, and the inputs after it."""
    writes = any(may_write(n) for n in graph.graph.nodes)
    if numbers.drawn:
        flat, values = inlined(graph), clone_inputs(before) if writes else before
        with suppress(OtherDraws):
            return EagerRun(flat, handed_over(flat, numbers.drawn)).run(*values), values
    values = clone_inputs(before) if writes else before
    restore_rng(numbers.before)
    with transforms_ended():
        return graph(*values), values


def tolerances_again(apart: Mapping[str, float], wrong: Sequence[str]) -> dict[str, float]:
    """How far from eager each leaf may be where the graph runs again, from how far it was here.

    A leaf is wrong again when it is half as far as it was here, and one that was judged right when it is much further.

    >>> tolerances_again({"outputs[0]": 1e-6, "inputs[1]": 1.0}, ["inputs[1] (mutated)"])
    {'outputs[0]': 4e-06, 'inputs[1]': 0.5}
    """
    places = {path.removesuffix(MUTATED) for path in wrong}
    return {path: far * (0.5 if path in places else 4.0) for path, far in apart.items()}


def _differences(expected: tuple[Any, Any], got: tuple[Any, Any]) -> dict[str, float]:
    """How far each leaf of outputs and inputs is from eager's, where that is more than the last bits."""
    found: dict[str, float] = {}
    for label, want, have in zip(("outputs", "inputs"), expected, got):
        wanted, had = dict(leaves(want, label)), dict(leaves(have, label))
        for path in wanted.keys() | had.keys():
            far = _distance(wanted.get(path), had.get(path))
            if far > 0:
                found[path] = far
    return found


def _distance(a: Any, b: Any) -> float:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return 0.0 if isinstance(a, torch.Tensor) == isinstance(b, torch.Tensor) else 1.0
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return 1.0
    if a.numel() == 0 or same_bits(a, b):
        return 0.0
    if not (a.is_floating_point() or a.is_complex()):
        return float((a != b).sum())
    if a.layout != torch.strided or b.layout != torch.strided:
        a, b = a.to_dense(), b.to_dense()
    return max(_beyond_last_bits(*pair) for pair in pieces(a.detach(), b.detach()))


def _beyond_last_bits(a: torch.Tensor, b: torch.Tensor) -> float:
    wide = torch.complex128 if a.is_complex() else torch.float64
    far = (a.to(wide) - b.to(wide)).abs()
    last_bits = LAST_BITS * torch.finfo(a.dtype).eps * a.to(wide).abs()
    beyond = torch.where(far <= last_bits, torch.zeros_like(far), far)
    agree = (a == b) | (torch.isnan(a) & torch.isnan(b))
    beyond = torch.where(agree, torch.zeros_like(far), torch.nan_to_num(beyond, nan=float("inf")))
    return min(float(beyond.max()), 1e300)


def _trains(result: Any) -> bool:
    outputs = result if isinstance(result, (list, tuple)) else [result]
    return any(isinstance(o, torch.Tensor) and o.requires_grad for o in outputs)


def _check_gradients(
    graph: GuardedGraph, compiled: Callable[[list[Any]], Any], before: list[Any], state: RngState
) -> None:
    """Runs forward and backward once more, on copies, compiled and eager, and compares the gradients.

    Graphs compiled in here are watched like any other: the backward that torch compiles lazily is the one the
    program will use.
    """
    if graph.eager is None or graph.record.facts.number in graph.watch.gradients_checked:
        return
    # A CUDA graph's outputs live in memory that its next run overwrites: it must not be run on the side.
    if graph.record.facts.settings.options.get("triton.cudagraphs") == "True":
        return
    graph.watch.gradients_checked.add(graph.record.facts.number)
    seen, verdict = graph.flight.failed, None
    with rng_kept(), torch.enable_grad(), graph.held.kept(), transforms_ended():
        restore_rng(state)
        graph.watch.drawn.clear()
        try:
            verdict = judge_gradients(
                graph.eager,
                before,
                lambda *args: compiled(list(args)),
                draws=graph.watch.drawn,
                parameters_of_compiled=graph.held.of_program(),
            )
        except Exception as error:
            graph.flight.log(
                f"graph {graph.record.facts.number}: gradients not compared: {failures.describe(error)}"
            )
    if verdict is not None:
        with graph.watch.our_own_work():
            _note(graph, verdict)
    if verdict is None or not verdict.diverged or graph.flight.failed != seen:
        return
    far = {
        path_of_joint(leaf.path): abs(leaf.compiled - leaf.eager)
        for leaf in verdict.leaves
        if leaf.kind == DIVERGED and leaf.compiled is not None and leaf.eager is not None
    }
    with graph.watch.our_own_work():
        known = {path: each for path, each in far.items() if 0 < each < math.inf}
        _report(graph, verdict, list(map(path_of_joint, _diverged(verdict))), known, before)
