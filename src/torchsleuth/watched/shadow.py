"""Checks a compiled graph's result against eager, in the call that the program itself makes.

The program's call runs once, on its own inputs, and its result is what the program gets. Eager runs beside it
on copies taken before, with the same random numbers; the verdict of `compare` says whether they differ.

Where a compiler gives one tensor and eager several, or the other way, the numbers are the same and mostly nobody
notices. What is done to one of them afterwards, though, is then done to another one as well: a size, an attribute, a
flag. So that is no finding, but a reason to look at what the call as a whole leaves behind (`whole_calls`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from torchsleuth.core.cases.record import GraphRecord
from torchsleuth.core.protocol.failures import (
    FURTHER_CALLS,
    GRADIENTS_NOT_COMPARED,
    NOT_COMPARED,
    Remark,
)
from torchsleuth.core.watching import Settings
from torchsleuth.torch_core.compare.reference.cloning import tensors_in
from torchsleuth.torch_core.compare.reference.eager import MUTATED
from torchsleuth.torch_core.compare.reference.float64 import MEMORY_ERRORS
from torchsleuth.torch_core.compare.reference.memory import (
    copies_counted,
    may_run_again,
    memory_counted_apart,
    memory_left,
)
from torchsleuth.torch_core.compare.reference.opkinds import may_draw
from torchsleuth.torch_core.compare.reference.rng import (
    RngState,
    noting_draws,
    restore_rng,
    rng_kept,
    save_rng,
)
from torchsleuth.torch_core.compare.reference.trees import leaves
from torchsleuth.torch_core.compare.verdict.look import (
    Called,
    Differentiated,
    Look,
    Numbers,
    differentiated,
    firsts,
    looked_at,
    path_of_joint,
)
from torchsleuth.torch_core.compare.verdict.verdict import DIVERGED, WITHIN_NOISE, Verdict
from torchsleuth.torch_internals.aot_autograd import compiled_function_of
from torchsleuth.torch_internals.modes import Switches
from torchsleuth.torch_internals.operators import users_operator
from torchsleuth.torch_internals.tensors import CannotHand, transforms_ended
from torchsleuth.watched import failures
from torchsleuth.watched.call_judge import LITTLE_MEMORY, why_not_forked
from torchsleuth.watched.call_state import CannotRepeat
from torchsleuth.watched.checker import done_apart, handed

if TYPE_CHECKING:
    from torchsleuth.watched.guard import GuardedGraph
    from torchsleuth.watched.watch import Watch


# ---- which outputs are one tensor


@dataclass(frozen=True)
class MergedOutputs:
    """A graph with such outputs: for which backend, and the user's line that made the last of them."""

    backend: str
    line: tuple[str, int] | None = None


def merged_outputs(
    record: GraphRecord, graph: torch.fx.GraphModule, expected: Mapping[str, str], seen: Mapping[str, str]
) -> MergedOutputs | None:
    """What is to know of a graph whose tensors are others than eager's (`firsts`); None where they are the same."""
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
    drawn = watch.drawn
    if not inner:
        drawn.clear()  # of a call that raised
    known_draws = len(drawn)
    seconds = watch.budget.seconds_for(_is_first_look(graph))
    if not seconds:
        _not_compared(graph, "the time for it is spent (--check-budget)")
        with _draws_noted(graph, inner):
            return compiled(args)
    with ExitStack() as copies:
        before, state = _before(graph, held, copies)
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
                # Activations saved for the backward are its own: compiled code may reuse their memory.
                inputs_after = [] if facts.settings.direction == "backward" else held
                call = Called(before, result, inputs_after, numbers)
                look = _apart(graph, lambda: call, Switches.now(), seconds)
            if look.ones is not None and graph.eager is not None:
                seen = firsts((inputs_after, result))
                if merged := merged_outputs(graph.record.facts, graph.eager, look.ones, seen):
                    watch.whole_calls.merged.append(merged)
            _conclude(graph, look, before, inner)
        unseen = facts.number not in watch.gradients_checked
        if not inner and unseen and graph.flight.failed == failed_before and _training(result):
            if earlier := watch.awaiting_backward.get(facts.number):
                earlier.copies.close()
            watch.awaiting_backward[facts.number] = AwaitingBackward(
                graph,
                compiled,
                before,
                state,
                graph.flight.failed,
                Switches.now(),
                compiled_function_of(_training(result)),
                copies.pop_all(),
            )
    return result


def _before(
    graph: GuardedGraph, held: list[Any], copies: ExitStack
) -> tuple[list[Any] | None, RngState | None]:
    """What the call is given, copied while `copies` are open, and the random numbers; None where it cannot be compared.

    Weights are copied once for a captured graph, its forward and its backward. Others may take half of what is left:
    the process that looks needs as much.
    """
    watch = graph.watch
    before, state = None, None
    with watch.our_own_work(), watch.budget.spending():
        try:
            take = functools.partial(watch.copies.of, most=lambda device: memory_left(device) / 2)
            before, state = copies.enter_context(copies_counted(held, take)), save_rng()
            copies.enter_context(watch.copies.remembered(held, before))
        except MEMORY_ERRORS as error:
            _not_compared(graph, f"there is not enough memory: {error}")
        graph.held.take_values()
    return before, state


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


def _apart(
    graph: GuardedGraph, call: Callable[[], Called | Differentiated], switches: Switches, seconds: float
) -> Look:
    """Looks in a process of its own: a fork of this one, or one that is handed the call where there can be none."""
    counters, slot = graph.flight.counters, graph.flight.run_slot(graph.record.facts.number)
    beats = 0

    def still_here() -> None:  # it is not the program that takes so long
        nonlocal beats
        beats += 1
        counters[slot] += 2

    def look() -> Look:
        assert graph.eager is not None
        try:
            with switches.of_thread():
                return looked_at(graph.eager, call())
        except (CannotRepeat, *MEMORY_ERRORS):
            raise
        except Exception as error:
            return Look(why_not=f"it does not run here: {failures.describe(error)}")

    def beside() -> Look:
        assert graph.eager is not None
        given = handed(graph.eager, call(), switches)
        return graph.watch.checker.asked(given, graph.flight.folder, seconds, still_here)

    try:
        if (why := why_not_forked()) == LITTLE_MEMORY:
            return Look(why_not=why)
        if why is None:
            found = _or_why_not(lambda: done_apart(graph.watch, look, seconds, still_here))
            # Torch that is built for CUDA runs no backward in a fork.
            if "threading in combination with fork" not in (found.why_not or ""):
                return found
        return _or_why_not(beside)
    finally:
        counters[slot] -= 2 * beats


def _or_why_not(look: Callable[[], Look]) -> Look:
    try:
        return look()
    except (CannotRepeat, CannotHand) as why:
        return Look(why_not=str(why))


def _conclude(graph: GuardedGraph, look: Look, before: list[Any], inner: bool) -> None:
    if look.why_not is not None:
        _not_compared(graph, look.why_not)
    if look.verdict is None:
        return
    _note(graph, look.verdict)
    if look.verdict.diverged:
        _report(graph, look.verdict, _diverged(look.verdict), look.apart, before)
        facts = graph.record.facts
        if inner and facts.compile_id is not None and facts.settings.direction == "forward":
            # What is captured around it is wrong with it, also in calls in which this is not checked.
            graph.watch.wrong_inside.add(facts.compile_id)


def _not_compared(graph: GuardedGraph, why: str, kind: str = "") -> None:
    """One line for a graph that was not looked at, and for the first of its calls that was not, or its gradients."""
    calls, facts = graph.record.calls, graph.record.facts
    kind = kind or (NOT_COMPARED if calls == 1 else FURTHER_CALLS)
    if (facts.number, kind) in graph.watch.said:
        return
    graph.watch.said.add((facts.number, kind))
    graph.flight.log(f"graph {facts.number}: call {calls}: {kind}: {why}")
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


def tolerances_again(apart: Mapping[str, float], wrong: Sequence[str]) -> dict[str, float]:
    """How far from eager each leaf may be where the graph runs again, from how far it was here.

    A leaf is wrong again when it is half as far as it was here, and one that was judged right when it is much further.

    >>> tolerances_again({"outputs[0]": 1e-6, "inputs[1]": 1.0}, ["inputs[1] (mutated)"])
    {'outputs[0]': 4e-06, 'inputs[1]': 0.5}
    """
    places = {path.removesuffix(MUTATED) for path in wrong}
    return {path: far * (0.5 if path in places else 4.0) for path, far in apart.items()}


def _training(result: Any) -> list[torch.Tensor]:
    return [o for o in tensors_in([result]) if o.requires_grad]


@dataclass(frozen=True)
class AwaitingBackward:
    """A call whose gradients are looked at once the program has run a backward: then it has compiled what that needs.

    `before` are copies of what the call was given, `failed` is how many failures there were by then; `switches` are its
    own: a backward mostly runs outside of autocast. The `copies` are at hand until then. AOTAutograd made the result
    with `function`; None where nothing leads back to it, and then no backward of it comes.
    """

    graph: GuardedGraph
    compiled: Callable[[list[Any]], Any]
    before: list[Any]
    state: RngState
    failed: int
    switches: Switches
    function: Any
    copies: ExitStack


def check_gradients(watch: Watch) -> None:
    """After a backward of the program: the calls that wait for it are made again, compiled and in eager, on copies, and
    their gradients compared."""
    for call in [call for call in watch.awaiting_backward.values() if not _backward_to_come(call)]:
        del watch.awaiting_backward[call.graph.record.facts.number]
        with call.copies:
            _check_gradients(watch, call)


def _check_gradients(watch: Watch, call: AwaitingBackward) -> None:
    graph = call.graph
    # A CUDA graph's outputs live in memory that its next run overwrites: it must not be run on the side.
    if graph.record.facts.settings.options.get("triton.cudagraphs") == "True":
        return
    watch.gradients_checked.add(graph.record.facts.number)
    if graph.flight.failed != call.failed:
        return  # the backward is to blame, and has been
    with watch.our_own_work(), watch.budget.spending():
        look = Look(why_not="the time for it is spent (--check-budget)")
        if seconds := watch.budget.seconds_for(first=True):
            look = _apart(graph, functools.partial(_made_again, call), call.switches, seconds)
        if look.why_not is not None:
            _not_compared(graph, look.why_not, GRADIENTS_NOT_COMPARED)
        elif look.verdict is not None:
            _note(graph, look.verdict)
            if look.verdict.diverged:
                wrong = list(map(path_of_joint, _diverged(look.verdict)))
                _report(graph, look.verdict, wrong, look.apart, call.before)


def _backward_to_come(call: AwaitingBackward) -> bool:
    """Whether the forward alone is compiled so far: the backward that ran was another one."""
    return call.function is not None and call.function.compiled_bw is None


def _made_again(call: AwaitingBackward) -> Differentiated:
    """The call and its backward once more, on copies, as the program has compiled and run them.

    In a process that cannot be forked this is done in the program itself: so not where code of the user's would run
    once more, nor where it may take more memory than a check has.
    """
    graph, watch = call.graph, call.graph.watch
    assert graph.eager is not None
    if os.getpid() == graph.flight.pid:
        if not may_run_again(call.before):
            raise CannotRepeat("there is not enough memory to run it once more")
        if (own := users_operator(graph.eager)) is not None:
            raise CannotRepeat(f"it would run {own}, which is the program's own, once more")
    watch.rerunning = True
    try:
        with (
            call.switches.of_thread(),
            rng_kept(),
            torch.enable_grad(),
            graph.held.kept(),
            transforms_ended(),
        ):
            restore_rng(call.state)
            watch.drawn.clear()
            return differentiated(
                graph.eager,
                call.before,
                lambda *args: call.compiled(list(args)),
                draws=watch.drawn,
                parameters_of_compiled=graph.held.of_program(),
            )
    except Exception as error:
        raise CannotRepeat(failures.describe(error)) from error
    finally:
        watch.rerunning = False
