"""`minify` of a case: search, keep every smaller repro on disk at once, and write it readably.

Stopping at any time leaves the best repro so far; what was asked is in the log of trials, so the same command goes on
where it was stopped. A case that does not fail here, or fails differently, ends with one sentence that says so.
The minimal state is written in several forms, the most readable first: a small function under `torch.compile`, one with
operators by name, the graph handed to the part of the compiler that fails, and last the exact script, which does what
the trial did with the runtime file beside it. Whether they fail is for fresh processes to say.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torchsleuth.core.cases.folder import CaseFolder, update_case
from torchsleuth.core.cases.model import Minified
from torchsleuth.core.processes.limits import clock_of_a_hang, seconds_of_a_hang
from torchsleuth.core.protocol.steps import CHECKPOINTS, REPRO, ScriptToVerify, Verification
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.search.minify.case_state import CannotMinify, SearchStart, seeds, wait_for_device
from torchsleuth.search.minify.contract import Listener, Reduction, State
from torchsleuth.search.minify.driver import search
from torchsleuth.search.minify.explain import Explanation, explain
from torchsleuth.search.minify.oracle import ROOM_FOR_SPEED, NoAnswer, Questions, TrialOracle
from torchsleuth.search.minify.states import SHAPES, trial_of
from torchsleuth.search.minify.subsets import NothingFails
from torchsleuth.search.workers.failure_rate import AGAIN, FlakyFailure
from torchsleuth.torch_core.compare.reference.eager import MUTATED
from torchsleuth.torch_core.compare.verdict.tolerances import Tolerances
from torchsleuth.torch_core.graphs.cut import calls_of
from torchsleuth.torch_core.graphs.printer import print_graph
from torchsleuth.torch_core.repro.script import RUNTIME, runtime_text, script_text
from torchsleuth.torch_core.repro.small import small_script, small_scripts
from torchsleuth.torch_core.repro.small_graph import SmallGraph, SmallInput
from torchsleuth.torch_core.tensors import TensorSpec
from torchsleuth.torch_internals.schemas import written_inputs

# Of the time for everything, what the search leaves for writing and verifying.
LEFT_FOR_VERIFYING = 0.2
# Of a hang: three scripts at once, on two cores, each of which has to last as long as the failure takes to be seen.
TIMES_TO_FAIL = 2.5
VERIFY_TIMES = 3
# A failure that comes only sometimes is shown by more runs, but not by more than anyone waits for.
MOST_TIMES = 10


class Follower(Listener):
    """Someone who follows a search to its scripts."""

    def written(self, wanted: Verification) -> None:
        """The scripts are there; they are run while the search goes on."""


@dataclass(frozen=True)
class MinifyResult:
    """What came of it: the reduction, what may vary, and what else failed on the way."""

    reduction: Reduction
    explanation: Explanation
    also: tuple[str, ...] = ()
    trial_seconds: float = 0.0


def minify_case(
    folder: CaseFolder,
    start: SearchStart,
    questions: Questions,
    follower: Follower,
    *,
    budget_seconds: float = 600.0,
) -> MinifyResult:
    """Makes the smallest repro of a case that still fails the same way; `follower` has its scripts verified."""
    started = time.monotonic()
    workers, case = questions.workers, folder.case
    budget_seconds += wait_for_device(workers, case.device, budget_seconds)
    questions.deadline = started + budget_seconds
    SHAPES.set(questions.shapes)
    clock = clock_of_a_hang(workers.limits, case.kind, case.phase, case.extra.get("timeout"), ROOM_FOR_SPEED)
    oracle = TrialOracle(questions, start.expected, clock).holding_to(start.state)

    def keep(state: State) -> None:
        text = best_so_far(folder, start, state, oracle.tolerances_of(state), oracle.text)
        files = {f"{CHECKPOINTS}/{calls_of(state.graph)}.py": text, REPRO: text, **runtime_files()}
        update_case(folder, files)

    verifying = max(LEFT_FOR_VERIFYING * budget_seconds, TIMES_TO_FAIL * oracle.seconds_to_fail)
    reduction = _searched(folder, start, oracle, follower, keep, max(0.0, budget_seconds - verifying))
    follower.begins("writing the scripts")
    state = reduction.state
    tolerances = oracle.tolerances_of(state)
    scripts = write_scripts(folder, start, state, tolerances, oracle.text, complete=reduction.complete)
    rate = oracle.rate
    times = VERIFY_TIMES if rate is None else max(VERIFY_TIMES, min(MOST_TIMES, rate.repeats))
    update_case(folder, minified=_minified(reduction, round(time.monotonic() - started, 2)))
    follower.said(_so_far(reduction, times))
    at_once = VERIFY_TIMES if workers.count > 1 else 1
    in_eager = oracle.must_pass_in_eager or start.expected.kind == "accuracy"
    follower.written(Verification(tuple(scripts), times, at_once, always=rate is None, in_eager=in_eager))
    # Fresh processes are waited for: meanwhile what may vary is asked, where that is cheap and time is left.
    worth_it = reduction.complete and not oracle.failing_is_slow
    explanation = Explanation(())
    if worth_it and follower.begins("asking what may vary"):
        oracle.deadline = questions.deadline
        explanation = explain(state, oracle, questions.deadline)
    more = _more(explanation, oracle)
    update_case(folder, _beside(explanation, oracle), extra=more)
    return MinifyResult(reduction, explanation, tuple(more["also"]), round(oracle.trial_seconds, 2))


def _so_far(reduction: Reduction, times: int) -> str:
    left = f"{reduction.calls} {'call' if reduction.calls == 1 else 'calls'} left"
    ended = left if reduction.complete else f"stopped before the end with {left}"
    return f"{ended}; writing the script and running it {times} times in fresh processes"


def _searched(
    folder: CaseFolder,
    start: SearchStart,
    oracle: TrialOracle,
    follower: Follower,
    keep: Callable[[State], None],
    budget_seconds: float,
) -> Reduction[State]:
    """The search itself; raises `CannotMinify` where nothing of the case fails as it failed.

    Whether it always fails is asked of what was found, the cheapest question there is; where it does not, the search
    starts again and believes no single pass.
    """
    known = list(folder.case.triage.nodes) if folder.case.triage is not None else []
    if folder.case.analysis is not None and folder.case.analysis.node is not None:
        known.insert(0, folder.case.analysis.node)
    blamed = seeds(start.state.graph, start.traceback, start.expected.message, start.record.nodes)
    blamed = list(dict.fromkeys([*known, *blamed]))
    oracle.deadline = deadline = time.monotonic() + budget_seconds

    def once() -> Reduction:
        try:
            found = search(
                start.state,
                oracle,
                seeds=blamed,
                width=oracle.workers.count,
                budget_seconds=max(1.0, deadline - time.monotonic()),
                listener=follower,
                keep=keep,
            )
            if found.state is not start.state or not found.complete or oracle([start.state])[0]:
                if found.complete:
                    oracle.look_again(found.state, failed=True)
                return found
            nothing = None
        except NothingFails as error:
            nothing = error
        except NoAnswer as why:
            if not why.died:
                raise CannotMinify(f"case {folder.case.id} cannot be tried here: {why}") from why
            raise CannotMinify(
                f"the graph of case {folder.case.id} cannot be run without the compiler either ({why}), so the bug is "
                f"the program's or an operator's own; see `python {folder.file('original.py')} --eager`"
            ) from why
        oracle.look_again(start.state, failed=False)
        raise _why_not(oracle, folder) from nothing

    try:
        reduction = once()
    except FlakyFailure as sometimes:
        follower.said(f"case {folder.case.id}: {sometimes}")
        reduction = once()
    if reduction.state is start.state:
        keep(reduction.state)
        follower.smaller("nothing", reduction.state)
    return reduction


def _more(explanation: Explanation, oracle: TrialOracle) -> dict[str, Any]:
    """What case.json says beyond the contract's sections."""
    also = sorted(signature.summary for signature, _ in oracle.also.values())
    rate = oracle.rate
    return {
        "explanation": {"may_vary": list(explanation.sentences), "passes_with": explanation.difference},
        "also": also,
        "failure_rate": {"failures": rate.failures, "runs": rate.runs} if rate is not None else None,
    }


def _beside(explanation: Explanation, oracle: TrialOracle) -> dict[str, str]:
    """Files for reading: the nearest graph that passes, and those that failed differently."""
    files = {}
    if explanation.neighbour is not None:
        files["neighbour.py"] = _readable(explanation.neighbour, f"passes with {explanation.difference}")
    for mark, (signature, state) in oracle.also.items():
        files[f"also/{mark}.py"] = _readable(state, f"fails differently: {signature.summary}")
    return files


def _readable(state: State, about: str) -> str:
    inputs = "".join(
        f"# {i.name}: {i.spec.dtype} {list(i.spec.shape)}\n"
        for i in state.inputs
        if isinstance(i.spec, TensorSpec)
    )
    return f"# {' '.join(about.split())}\n{inputs}{print_graph(state.graph).text}"


def _why_not(oracle: TrialOracle, folder: CaseFolder) -> CannotMinify:
    """Why nothing of the case fails here as it failed there."""
    case = folder.case
    if oracle.errors:
        return CannotMinify(f"case {case.id} cannot be tried here: {oracle.errors[-1]}")
    other = next(reversed(oracle.also.values()), None)
    if other is not None:
        return CannotMinify(
            f"case {case.id} fails differently here ({other[0].summary}); run its original.py to compare"
        )
    return CannotMinify(
        f"case {case.id} does not fail here any more (whole graph, {1 + AGAIN} runs); the machine, torch or the "
        f"environment differs, or it fails rarely: torchsleuth verify {case.id} --times 20"
    )


def _minified(reduction: Reduction, seconds: float) -> Minified:
    state = reduction.state
    return Minified(
        calls=reduction.calls,
        inputs=len(state.inputs),
        ops=tuple(print_graph(state.graph).ops),
        queries=reduction.queries,
        seconds=seconds,
        input_bytes=sum(i.value.untyped_storage().nbytes() for i in state.inputs if i.value is not None),
    )


EXACT = "exact"


def write_scripts(
    folder: CaseFolder,
    start: SearchStart,
    state: State,
    tolerances: Tolerances,
    text: str,
    *,
    complete: bool = True,
) -> list[ScriptToVerify]:
    """Puts every form of the state under checkpoints/, with its data where it will look for it.

    A search that was `complete` has tried whether a whole compile fails, too.
    """
    place = folder.file(CHECKPOINTS)
    place.mkdir(exist_ok=True)
    written = []
    small = small_graph(folder, start, state, tolerances, text)
    for script in small_scripts(small, untried=not complete):
        for name, data in script.files.items():
            (place / name).write_bytes(data)
        one = ScriptToVerify(script.form, tuple(script.files), script.input_bytes, random=script.random)
        folder.file(one.name).write_text(script.text, encoding="utf-8")
        written.append(one)
    exact = exact_script(folder, start, state, tolerances)
    (place / f"{EXACT}.py").write_text(exact, encoding="utf-8")
    return [*written, ScriptToVerify(EXACT, (RUNTIME,), needs_inputs=True)]


def runtime_files() -> dict[str, str]:
    """The runtime beside repro.py, and beside the scripts under checkpoints/."""
    return {RUNTIME: runtime_text(), f"{CHECKPOINTS}/{RUNTIME}": runtime_text()}


def best_so_far(
    folder: CaseFolder, start: SearchStart, state: State, tolerances: Tolerances, text: str
) -> str:
    """A script for a state on the way, which stays where the search ends: a small one that does what trials do."""
    script = small_script(small_graph(folder, start, state, tolerances, text))
    if script is not None and not script.files:
        return script.text
    return exact_script(folder, start, state, tolerances)


def exact_script(folder: CaseFolder, start: SearchStart, state: State, tolerances: Tolerances) -> str:
    """The script that does exactly what the trial did, with the runtime file beside it."""
    trial = trial_of(state, start.expected, folder.file("inputs"))
    lines = start.record.nodes
    record = replace(
        start.record,
        settings=trial.settings,
        placeholders=trial.placeholders,
        constants=trial.constants,
        imports=trial.imports,
        calls=calls_of(state.graph),
        source_lines=tuple(
            dict.fromkeys(lines[n.name].place for n in state.graph.graph.nodes if n.name in lines)
        ),
    )
    return script_text(
        record,
        trial.graph,
        start.expected.to_json(),
        inputs=trial.inputs,
        tolerances=tolerances.by_path,
        case=folder.case.id,
        name=REPRO,
    )


def small_graph(
    folder: CaseFolder, start: SearchStart, state: State, tolerances: Tolerances, text: str = ""
) -> SmallGraph:
    """The state as what a small script is written from; `text` is the traceback of a trial that failed."""
    timeout, hangs = folder.case.extra.get("timeout"), start.expected.kind == "hang"
    return SmallGraph(
        graph=state.graph,
        inputs=tuple(SmallInput(i.name, i.spec, i.value) for i in state.inputs),
        settings=state.settings,
        signature=_own_signature(start.expected, state),
        embedded=state.embedded,
        dynamic=bool(state.symbols),
        tolerance=tolerances.distance,
        case=folder.case.id,
        text=text,
        hung_after=seconds_of_a_hang(timeout, calls_of(state.graph)) if hangs else None,
    )


def _own_signature(signature: Signature, state: State) -> Signature:
    """The results that a wrong one names are those of the small graph, not of the one it was cut from."""
    if signature.kind != "accuracy":
        return signature
    outputs = [f"outputs[{i}]" for i in range(len(state.graph.graph.output_node().all_input_nodes))]
    written = written_inputs(state.graph)
    outputs += [f"inputs[{i}]{MUTATED}" for i, given in enumerate(state.inputs) if given.name in written]
    return replace(signature, outputs=tuple(outputs))
