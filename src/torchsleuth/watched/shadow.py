"""Checks a compiled graph's result against eager, in the call that the program itself makes.

The program's call runs once, on its own inputs, and its result is what the program gets. Eager runs beside it
on copies taken before, with the same random numbers; the verdict of `compare` says whether they differ.

Where a compiler gives one tensor and eager several, or the other way, the numbers are the same and mostly nobody
notices. What is done to one of them afterwards, though, is then done to another one as well: a size, an attribute, a
flag. So that is no finding, but a reason to look at what the call as a whole leaves behind (`whole_calls`).
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from torchsleuth.core.cases.record import GraphRecord
from torchsleuth.core.protocol.failures import FURTHER_CALLS, NOT_COMPARED, Remark
from torchsleuth.core.watching import Settings
from torchsleuth.script_runtime.compiling import with_reshapes
from torchsleuth.torch_core.compare.reference.cloning import clone_inputs, same_bits, tensors_in
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
from torchsleuth.torch_internals.modes import switches_of_thread
from torchsleuth.torch_internals.schemas import may_write
from torchsleuth.torch_internals.tensors import transforms_ended
from torchsleuth.watched import failures
from torchsleuth.watched.call_judge import done_apart, why_not_forked
from torchsleuth.watched.call_state import CannotRepeat

if TYPE_CHECKING:
    from torchsleuth.watched.guard import GuardedGraph
    from torchsleuth.watched.watch import Watch


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
    watch, facts = graph.watch, graph.record.facts
    held = list(args)
    before: list[Any] | None = None
    state: RngState | None = None
    drawn = watch.drawn
    if not inner:
        drawn.clear()  # of a call that raised
    known_draws = len(drawn)
    seconds = watch.budget.seconds_for(_is_first_look(graph))
    if not seconds:
        _not_compared(graph, "the time for it is spent (--check-budget)")
        with _draws_noted(graph, inner):
            return compiled(args)
    with copies_counted(held):
        with watch.our_own_work(), watch.budget.spending():
            before, state = clone_inputs(held), save_rng()
            graph.held.take_values()
        failed_before = graph.flight.failed
        own = watch.budget.first_call() if graph.record.calls == 1 else nullcontext()
        with _draws_noted(graph, inner), own:
            result = compiled(args)
        own_draws = drawn[known_draws:]
        if not inner or facts.settings.direction == "backward":
            del drawn[known_draws:]  # nobody else asks for them, and masks are as large as values
        known = not inner and facts.compile_id in watch.wrong_inside
        if before is None or state is None or known or graph.flight.failed != failed_before:
            return result  # a graph inside this one is to blame, and has been
        with memory_counted_apart(held), watch.our_own_work(), watch.budget.spending():
            with rng_kept() as after:
                numbers = Numbers(state, after, own_draws)
                look = _apart(graph, lambda: _looked_at(graph, before, numbers, result, held), seconds)
            _conclude(graph, look, before, inner)
        unseen = facts.number not in watch.gradients_checked
        if not inner and unseen and graph.flight.failed == failed_before and _training(result):
            watch.awaiting_backward[facts.number] = AwaitingBackward(
                graph, compiled, before, state, graph.flight.failed, switches_of_thread(), _is_cut_off(result)
            )
    return result


def _is_first_look(graph: GuardedGraph) -> bool:
    """Whether no graph like this one was looked at in this process."""
    settings = graph.record.facts.settings
    key = (graph.record.facts.hash, settings.level, settings.direction)
    first = key not in graph.watch.looked_at
    graph.watch.looked_at.add(key)
    return first


def _draws_noted(graph: GuardedGraph, inner: bool) -> AbstractContextManager[object]:
    """Around the run of a graph: what it draws, where a graph around it is judged by that."""
    if inner and graph.eager is not None and any(may_draw(n) for n in graph.eager.graph.nodes):
        return noting_draws(graph.watch.drawn)
    return nullcontext()


def rerun(graph: GuardedGraph, compiled: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Runs a graph once more, in a call of the program that is made again to look at its gradients."""
    forward = graph.record.facts.settings.direction != "backward"
    with _draws_noted(graph, inner=forward):
        return compiled(*args)


@dataclass(frozen=True)
class Look:
    """What came of looking at the result of a graph: how far leaves are from eager, and the verdict where any is."""

    apart: Mapping[str, float] = field(default_factory=dict)
    verdict: Verdict | None = None
    merged: MergedOutputs | None = None
    why_not: str | None = None


def _apart(graph: GuardedGraph, look: Callable[[], Look], seconds: float) -> Look:
    """Looks in a process of its own; in this one where it cannot be forked."""
    if why_not_forked() is not None:
        return look()
    counters, slot = graph.flight.counters, graph.flight.run_slot(graph.record.facts.number)
    beats = 0

    def still_here() -> None:  # it is not the program that takes so long
        nonlocal beats
        beats += 1
        counters[slot] += 2

    try:
        return done_apart(graph.watch, look, seconds, still_here)
    except CannotRepeat as why:
        return Look(why_not=str(why))
    finally:
        counters[slot] -= 2 * beats


def _conclude(graph: GuardedGraph, look: Look, before: list[Any], inner: bool) -> None:
    if look.why_not is not None:
        _not_compared(graph, look.why_not)
    if look.merged is not None:
        graph.watch.whole_calls.merged.append(look.merged)
    if look.verdict is None:
        return
    _note(graph, look.verdict)
    if look.verdict.diverged:
        _report(graph, look.verdict, _diverged(look.verdict), look.apart, before)
        facts = graph.record.facts
        if inner and facts.compile_id is not None and facts.settings.direction == "forward":
            # What is captured around it is wrong with it, also in calls in which this is not checked.
            graph.watch.wrong_inside.add(facts.compile_id)


def _not_compared(graph: GuardedGraph, why: str) -> None:
    """One line for a graph that was not looked at, and for the first of its calls that was not."""
    calls, facts = graph.record.calls, graph.record.facts
    kind = NOT_COMPARED if calls == 1 else FURTHER_CALLS
    if (facts.number, kind) in graph.watch.said:
        return
    graph.watch.said.add((facts.number, kind))
    graph.flight.log(f"graph {facts.number}: call {calls} not compared with eager: {why}")
    graph.flight.remark(Remark(facts.number, facts.settings.direction, facts.function, kind, why))


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


def _looked_at(
    graph: GuardedGraph, before: list[Any], numbers: Numbers, result: Any, after: Sequence[Any]
) -> Look:
    """How far a result is from the graph run in eager, judged against float64 where that is more than the last bits."""
    assert graph.eager is not None
    if graph.record.facts.settings.direction == "backward":
        after = ()  # activations saved for the backward are its own: compiled code may reuse their memory
    eager = with_reshapes(graph.eager)
    try:
        expected, values = _in_eager(eager, before, numbers)
    except Exception as error:  # a hook on a gradient, say: this run is without any
        return Look(why_not=f"it does not run here: {failures.describe(error)}")
    merged = (
        merged_outputs(graph.record.facts, graph.eager, (values, expected), (after, result))
        if after
        else None
    )
    apart = _differences((expected, values if after else ()), (result, after))
    del values
    if not apart:
        return Look(merged=merged)
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
    return Look(apart, verdict, merged)


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


def _is_cut_off(result: Any) -> bool:
    """Whether nothing of it leads back to what it was computed from, though it is to be trained: no backward comes."""
    return all(output.grad_fn is None for output in _training(result))


def _training(result: Any) -> list[torch.Tensor]:
    return [o for o in tensors_in([result]) if o.requires_grad]


@dataclass(frozen=True)
class AwaitingBackward:
    """A call whose gradients are looked at once the program has run a backward: then it has compiled what that needs.

    `before` are copies of what the call was given, `failed` is how many failures there were by then; `switches` are its
    own: a backward mostly runs outside of autocast. Where the result is `cut_off`, no backward of it will come.
    """

    graph: GuardedGraph
    compiled: Callable[[list[Any]], Any]
    before: list[Any]
    state: RngState
    failed: int
    switches: Callable[[], AbstractContextManager[object]]
    cut_off: bool


def check_gradients(watch: Watch) -> None:
    """After a backward of the program: the calls that wait for it are made again, compiled and in eager, on copies, and
    their gradients compared."""
    for call in [call for call in watch.awaiting_backward.values() if not _backward_to_come(call)]:
        graph = call.graph
        del watch.awaiting_backward[graph.record.facts.number]
        # A CUDA graph's outputs live in memory that its next run overwrites: it must not be run on the side.
        if graph.record.facts.settings.options.get("triton.cudagraphs") == "True":
            continue
        watch.gradients_checked.add(graph.record.facts.number)
        if graph.flight.failed != call.failed:
            continue  # the backward is to blame, and has been
        with watch.our_own_work(), watch.budget.spending():
            look = Look(why_not="the time for it is spent (--check-budget)")
            if seconds := watch.budget.seconds_for(first=True):
                look = _apart(graph, functools.partial(_gradients_looked_at, call), seconds)
                if "threading in combination with fork" in (look.why_not or ""):  # as in torch built for CUDA
                    look = _gradients_looked_at(call)
            if look.why_not is not None:
                graph.flight.log(f"graph {graph.record.facts.number}: gradients not compared: {look.why_not}")
            elif look.verdict is not None:
                _note(graph, look.verdict)
                if look.verdict.diverged:
                    wrong = list(map(path_of_joint, _diverged(look.verdict)))
                    _report(graph, look.verdict, wrong, look.apart, call.before)


def _backward_to_come(call: AwaitingBackward) -> bool:
    """Whether Inductor has compiled the forward alone so far: the backward that ran was another one."""
    if call.cut_off:
        return False
    found = call.graph.watch.directions.get(call.graph.record.facts.compile_id)
    return found is not None and "backward" not in found


def _gradients_looked_at(call: AwaitingBackward) -> Look:
    graph, watch = call.graph, call.graph.watch
    assert graph.eager is not None
    watch.rerunning = True
    try:
        with call.switches(), rng_kept(), torch.enable_grad(), graph.held.kept(), transforms_ended():
            restore_rng(call.state)
            watch.drawn.clear()
            verdict = judge_gradients(
                graph.eager,
                call.before,
                lambda *args: call.compiled(list(args)),
                draws=watch.drawn,
                parameters_of_compiled=graph.held.of_program(),
            )
    except Exception as error:
        return Look(why_not=failures.describe(error))
    finally:
        watch.rerunning = False
    far = {
        path_of_joint(leaf.path): abs(leaf.compiled - leaf.eager)
        for leaf in verdict.leaves
        if leaf.kind == DIVERGED and leaf.compiled is not None and leaf.eager is not None
    }
    return Look({path: each for path, each in far.items() if 0 < each < math.inf}, verdict)
