"""`minify` of a case: search, keep every smaller repro on disk at once, and write it readably.

Stopping at any time leaves the best repro so far; what was asked is in the log of trials, so the same command goes on
where it was stopped. A case that does not fail here, or fails differently, ends with one sentence that says so.
The minimal state is written in several forms, the most readable first: a small function under `torch.compile`, one with
operators by name, the graph handed to the part of the compiler that fails, and last the exact script, which does what
the trial did with the runtime file beside it. Whether they fail is for fresh processes to say.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from torchsleuth.core.cases.folder import CaseFolder, update_case
from torchsleuth.core.cases.model import Minified
from torchsleuth.core.processes.limits import clock_of_a_hang, seconds_of_a_hang
from torchsleuth.core.protocol.steps import CHECKPOINTS, REPRO, ScriptToVerify, Verification
from torchsleuth.search.minify.case_state import CannotMinify, SearchStart, wait_for_device
from torchsleuth.search.minify.contract import Listener, Reduction, State
from torchsleuth.search.minify.driver import search
from torchsleuth.search.minify.explain import Explanation, explain
from torchsleuth.search.minify.oracle import ROOM_FOR_SPEED, TrialOracle
from torchsleuth.search.minify.states import NoAnswer, Questions, trial_of
from torchsleuth.search.minify.subsets import NothingFails
from torchsleuth.search.workers.failure_rate import AGAIN, FlakyFailure
from torchsleuth.torch_core.compare.reference.eager import MUTATED
from torchsleuth.torch_core.graphs.cut import calls_of
from torchsleuth.torch_core.graphs.printer import print_graph
from torchsleuth.torch_core.repro.script import RUNTIME, runtime_text, script_text
from torchsleuth.torch_core.repro.small import small_script, small_scripts
from torchsleuth.torch_core.repro.small_graph import SmallGraph, SmallInput
from torchsleuth.torch_internals.schemas import written_inputs

R = TypeVar("R", bound=Reduction)
# Of the time for everything, what the search leaves for writing and verifying.
LEFT_FOR_VERIFYING = 0.2
# Of a hang: three scripts at once, on two cores, each of which has to last as long as the failure takes to be seen.
TIMES_TO_FAIL = 2.5
VERIFY_TIMES = 3
EXACT = "exact"
# A failure that comes only sometimes is shown by more runs, but not by more than anyone waits for.
MOST_TIMES = 10


@dataclass(frozen=True)
class MinifyResult(Generic[R]):
    """What came of it: the reduction, the seconds of its trials, what may vary, and what else failed on the way."""

    reduction: R
    trial_seconds: float
    explanation: tuple[str, ...] = ()
    also: tuple[str, ...] = ()


def minify_case(
    folder: CaseFolder,
    start: SearchStart,
    questions: Questions,
    follower: Listener,
    *,
    budget_seconds: float = 600.0,
) -> MinifyResult[Reduction[State]]:
    """Makes the smallest repro of a case that still fails the same way; `follower` has its scripts verified."""
    started = time.monotonic()
    workers, case = questions.workers, folder.case
    budget_seconds += wait_for_device(workers, case.device, budget_seconds)
    questions.deadline = started + budget_seconds
    clock = clock_of_a_hang(workers.limits, case.kind, case.phase, case.extra.get("timeout"), ROOM_FOR_SPEED)
    oracle = TrialOracle(questions, start.expected, clock).holding_to(start.state)
    scripts = _Scripts(folder, start, oracle)
    verifying = max(LEFT_FOR_VERIFYING * budget_seconds, TIMES_TO_FAIL * oracle.seconds_to_fail)
    oracle.deadline = time.monotonic() + max(0.0, budget_seconds - verifying)
    try:
        reduction = _searched(scripts, follower)
    except FlakyFailure as sometimes:
        follower.said(f"case {case.id}: {sometimes}")
        reduction = _searched(scripts, follower)
    state = reduction.state
    if state is start.state:
        scripts.keep(state)
        follower.smaller("nothing", state)
    follower.begins("writing the scripts")
    written = scripts.write(state, complete=reduction.complete)
    update_case(folder, minified=_minified(reduction, round(time.monotonic() - started, 2)))
    rate = oracle.rate
    times = VERIFY_TIMES if rate is None else max(VERIFY_TIMES, min(MOST_TIMES, rate.repeats))
    left = f"{reduction.calls} {'call' if reduction.calls == 1 else 'calls'} left"
    ended = left if reduction.complete else f"stopped before the end with {left}"
    follower.said(f"{ended}; writing the script and running it {times} times in fresh processes")
    at_once = VERIFY_TIMES if workers.count > 1 else 1
    in_eager = oracle.must_pass_in_eager or start.expected.kind == "accuracy"
    follower.written(Verification(tuple(written), times, at_once, always=rate is None, in_eager=in_eager))
    # Fresh processes are waited for: meanwhile what may vary is asked, where that is cheap and time is left.
    worth_it = reduction.complete and not oracle.failing_is_slow
    explanation = Explanation(())
    if worth_it and follower.begins("asking what may vary"):
        oracle.deadline = questions.deadline
        explanation = explain(state, oracle, questions.deadline)
    also = sorted(signature.summary for signature, _ in oracle.also.values())
    more = {
        "explanation": {"may_vary": list(explanation.sentences), "passes_with": explanation.difference},
        "also": also,
        "failure_rate": {"failures": rate.failures, "runs": rate.runs} if rate is not None else None,
    }
    update_case(folder, _beside(explanation, oracle), extra=more)
    return MinifyResult(reduction, round(oracle.trial_seconds, 2), explanation.sentences, tuple(also))


def _searched(scripts: _Scripts, follower: Listener) -> Reduction[State]:
    """The search itself; raises `CannotMinify` where nothing of the case fails as it failed.

    Whether it always fails is asked of what was found, the cheapest question there is; where it does not, the search
    starts again and believes no single pass.
    """
    case, start, oracle = scripts.folder.case, scripts.start, scripts.oracle
    blamed = list(case.triage.nodes) if case.triage is not None else []
    if case.analysis is not None and case.analysis.node is not None:
        blamed.insert(0, case.analysis.node)
    blamed += start.blamed()
    left = None if oracle.deadline is None else max(1.0, oracle.deadline - time.monotonic())
    nothing = None
    try:
        found = search(
            start.state,
            oracle,
            seeds=list(dict.fromkeys(blamed)),
            width=oracle.workers.count,
            budget_seconds=left,
            listener=follower,
            keep=scripts.keep,
        )
        if found.state is not start.state or not found.complete or oracle([start.state])[0]:
            if found.complete:
                oracle.look_again(found.state, failed=True)
            return found
    except NothingFails as error:
        nothing = error
    except NoAnswer as why:
        if not why.died:
            raise CannotMinify(f"case {case.id} cannot be tried here: {why}") from why
        raise CannotMinify(
            f"the graph of case {case.id} cannot be run without the compiler either ({why}), so the bug is "
            f"the program's or an operator's own; see `python {scripts.folder.file('original.py')} --eager`"
        ) from why
    oracle.look_again(start.state, failed=False)
    raise CannotMinify(f"case {case.id} {_why_not(oracle, case.id)}") from nothing


def _why_not(oracle: TrialOracle, case: str) -> str:
    """Why nothing of the case fails here as it failed there."""
    if oracle.errors:
        return f"cannot be tried here: {oracle.errors[-1]}"
    other = next(reversed(oracle.also.values()), None)
    if other is not None:
        return f"fails differently here ({other[0].summary}); run its original.py to compare"
    return (
        f"does not fail here any more (whole graph, {1 + AGAIN} runs); the machine, torch or the environment differs, "
        f"or it fails rarely: torchsleuth verify {case} --times 20"
    )


def _minified(reduction: Reduction[State], seconds: float) -> Minified:
    state = reduction.state
    return Minified(
        calls=reduction.calls,
        inputs=len(state.inputs),
        ops=tuple(print_graph(state.graph).ops),
        queries=reduction.queries,
        seconds=seconds,
        input_bytes=sum(i.value.untyped_storage().nbytes() for i in state.inputs if i.value is not None),
    )


def _beside(explanation: Explanation, oracle: TrialOracle) -> dict[str, str]:
    """Files for reading: the nearest graph that passes, and those that failed differently."""
    files = {}
    if explanation.neighbour is not None:
        files["neighbour.py"] = _readable(explanation.neighbour, f"passes with {explanation.difference}")
    for mark, (signature, state) in oracle.also.items():
        files[f"also/{mark}.py"] = _readable(state, f"fails differently: {signature.summary}")
    return files


def _readable(state: State, about: str) -> str:
    inputs = "".join(f"# {given.name}: {spec.dtype} {list(spec.shape)}\n" for given, spec in state.tensors)
    return f"# {' '.join(about.split())}\n{inputs}{print_graph(state.graph).text}"


@dataclass(frozen=True)
class _Scripts:
    """A state as scripts: what a person wants to read, and what does exactly as the trial did."""

    folder: CaseFolder
    start: SearchStart
    oracle: TrialOracle

    def keep(self, state: State) -> None:
        """Puts a state on disk as the repro so far: a small script that does what trials do, else the exact one."""
        small = small_script(self._small(state))
        text = small.text if small is not None and not small.files else self._exact(state)
        files = {f"{CHECKPOINTS}/{calls_of(state.graph)}.py": text, REPRO: text}
        for place in (RUNTIME, f"{CHECKPOINTS}/{RUNTIME}"):
            # It is long, and looking for secrets in it takes half a second.
            if not self.folder.has(place) or self.folder.text(place) != runtime_text():
                files[place] = runtime_text()
        update_case(self.folder, files)

    def write(self, state: State, complete: bool) -> list[ScriptToVerify]:
        """Puts every form of the state under checkpoints/, with its data where it will look for it.

        A search that was `complete` has tried whether a whole compile fails, too.
        """
        place = self.folder.file(CHECKPOINTS)
        place.mkdir(exist_ok=True)
        written = []
        for script in small_scripts(self._small(state), untried=not complete):
            for name, data in script.files.items():
                (place / name).write_bytes(data)
            one = ScriptToVerify(script.form, tuple(script.files), script.input_bytes, random=script.random)
            self.folder.file(one.name).write_text(script.text, encoding="utf-8")
            written.append(one)
        (place / f"{EXACT}.py").write_text(self._exact(state), encoding="utf-8")
        return [*written, ScriptToVerify(EXACT, (RUNTIME,), needs_inputs=True)]

    def _exact(self, state: State) -> str:
        """The script that does exactly what the trial did, with the runtime file beside it."""
        expected, lines = self.start.expected, self.start.record.nodes
        trial = trial_of(state, expected, self.folder.file("inputs"))
        used = [lines[n.name].place for n in state.graph.graph.nodes if n.name in lines]
        record = replace(
            self.start.record,
            settings=trial.settings,
            placeholders=trial.placeholders,
            constants=trial.constants,
            imports=trial.imports,
            calls=calls_of(state.graph),
            source_lines=tuple(dict.fromkeys(used)),
        )
        return script_text(
            record,
            trial.graph,
            expected.to_json(),
            inputs=trial.inputs,
            tolerances=self.oracle.tolerances_of(state).by_path,
            case=self.folder.case.id,
            name=REPRO,
        )

    def _small(self, state: State) -> SmallGraph:
        """The state as what a small script is written from, with the traceback of a trial that failed."""
        expected, case = self.start.expected, self.folder.case
        if expected.kind == "accuracy":
            # The results that a wrong one names are those of the small graph, not of the one it was cut from.
            outputs = [f"outputs[{i}]" for i in range(len(state.graph.graph.output_node().all_input_nodes))]
            written = written_inputs(state.graph)
            outputs += [
                f"inputs[{i}]{MUTATED}" for i, each in enumerate(state.inputs) if each.name in written
            ]
            expected = replace(expected, outputs=tuple(outputs))
        seconds = seconds_of_a_hang(case.extra.get("timeout"), calls_of(state.graph))
        return SmallGraph(
            graph=state.graph,
            inputs=tuple(SmallInput(i.name, i.spec, i.value) for i in state.inputs),
            settings=state.settings,
            signature=expected,
            embedded=state.embedded,
            dynamic=bool(state.symbols),
            tolerance=self.oracle.tolerances_of(state).distance,
            case=case.id,
            text=self.oracle.text,
            hung_after=seconds if expected.kind == "hang" else None,
            grows=self.oracle.grows,
        )
