"""`minify` of a case: search, keep every smaller repro on disk at once, write it readably, and verify it.

Stopping at any time leaves the best repro so far; what was asked is in the log of trials, so the same command goes on
where it was stopped. A case that does not fail here, or fails differently, ends with one sentence that says so.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from torchsleuth.cases.folder import CaseFolder, update_case
from torchsleuth.cases.model import Minified, Verified
from torchsleuth.graphs.cut import calls_of
from torchsleuth.graphs.printer import print_graph
from torchsleuth.minify.blame import seeds
from torchsleuth.minify.case_state import (
    CannotMinify,
    OpenedCase,
    open_for_search,
    refuse_deadly_graph,
    wait_for_device,
)
from torchsleuth.minify.explain import Explanation, explain
from torchsleuth.minify.oracle import TrialOracle
from torchsleuth.minify.search.contract import Listener, Reduction, Silence, State
from torchsleuth.minify.search.driver import search
from torchsleuth.minify.search.subsets import NothingFails
from torchsleuth.minify.states import warm_up
from torchsleuth.minify.writing import (
    REPRO,
    VERIFY_TIMES,
    Verification,
    Written,
    exact_script,
    write_repro,
)
from torchsleuth.processes.limits import clock_of_a_hang
from torchsleuth.supervise.interpreter import Prestarted
from torchsleuth.supervise.scripts import ScriptRun
from torchsleuth.tensors.specs import TensorSpec
from torchsleuth.workers.failure_rate import AGAIN, ComesSometimes
from torchsleuth.workers.pool import Workers

# Of the time for everything, what the search leaves for writing and verifying.
LEFT_FOR_VERIFYING = 0.2


@dataclass(frozen=True)
class MinifyResult:
    """What came of it: the case as it stands now, the reduction, which form the repro has, and what else failed."""

    folder: CaseFolder
    reduction: Reduction
    form: str
    runs: tuple[ScriptRun, ...]
    verified: bool
    explanation: Explanation
    also: tuple[str, ...] = ()
    seconds: float = 0.0
    trial_seconds: float = 0.0


def minify_case(
    folder: CaseFolder,
    *,
    budget_seconds: float = 600.0,
    workers: Workers,
    listener: Listener | None = None,
    early: Prestarted | None = None,
) -> MinifyResult:
    """Makes the smallest repro of a case that still fails the same way, and verifies it three times.

    `early` is an interpreter for the verification that was started before; else one is started here.

    >>> minify_case(open_case("torchsleuth-cases", "last"), budget_seconds=60, workers=Workers(2)).reduction.calls
    1
    """
    with contextlib.ExitStack() as stack:
        early = early or stack.enter_context(Prestarted())
        return _minify(folder, budget_seconds, workers, listener or Silence(), early)


def _minify(
    folder: CaseFolder, budget_seconds: float, workers: Workers, listener: Listener, early: Prestarted
) -> MinifyResult:
    started = time.monotonic()
    warm_up()
    opened = open_for_search(folder)
    refuse_deadly_graph(folder, early)
    budget_seconds += wait_for_device(workers, folder.case.device, budget_seconds)
    keeper = _Keeper(folder, opened, listener)
    # Beside the case's own values, so that workers which see the case see these as well; gone when the search is over.
    store = folder.path / ".trials"
    oracle = TrialOracle(
        workers,
        opened.expected,
        store,
        clock_of_a_hang(workers.limits, folder.case.kind, folder.case.extra.get("timeout")),
    )
    try:
        reduction = _searched(folder, opened, oracle, keeper, (1 - LEFT_FOR_VERIFYING) * budget_seconds)
        seconds = round(time.monotonic() - started, 2)
        at_once = VERIFY_TIMES if workers.count > 1 else 1
        how = Verification(early, started + budget_seconds, at_once, oracle.rate, oracle.text)
        keeper.said(_so_far(reduction, how))
        written, explanation = _written_and_explained(folder, opened, reduction, oracle, how)
    finally:
        shutil.rmtree(store, ignore_errors=True)
    reproduced = sum(run.reproduced for run in written.runs)
    folder = update_case(
        folder,
        _beside(explanation, oracle),
        minified=_minified(reduction, folder, written, seconds),
        verified=Verified(len(written.runs), reproduced, written.holds),
        extra={**_more(explanation, oracle), "verified_in": how.in_words(folder.case.device)},
    )
    return MinifyResult(
        folder,
        reduction,
        written.form,
        written.runs,
        written.holds,
        explanation,
        tuple(_more(explanation, oracle)["also"]),
        round(time.monotonic() - started, 2),
        round(oracle.trial_seconds, 2),
    )


def _so_far(reduction: Reduction, how: Verification) -> str:
    left = f"{reduction.calls} {'call' if reduction.calls == 1 else 'calls'} left"
    ended = left if reduction.complete else f"stopped before the end with {left}"
    return f"{ended}; writing the script and running it {how.times} times in fresh processes"


def _written_and_explained(
    folder: CaseFolder, opened: OpenedCase, reduction: Reduction, oracle: TrialOracle, how: Verification
) -> tuple[Written, Explanation]:
    """Fresh processes are waited for: meanwhile what may vary is asked, where that is cheap and time is left."""
    worth_it = reduction.complete and not oracle.failing_is_slow
    with ThreadPoolExecutor(1) as beside:
        writing = beside.submit(write_repro, folder, opened, reduction.state, how)
        try:
            explanation = explain(reduction.state, oracle) if worth_it else Explanation(())
            return writing.result(), explanation
        except BaseException:  # an interrupt, mostly: the scripts that run are not waited for
            if how.early is not None:
                how.early.give_up()
            raise


def _searched(
    folder: CaseFolder, opened: OpenedCase, oracle: TrialOracle, keeper: _Keeper, budget_seconds: float
) -> Reduction:
    """The search itself; raises `CannotMinify` where nothing of the case fails as it failed.

    Whether it always fails is asked of what was found, the cheapest question there is; where it does not, the search
    starts again and believes no single pass.
    """
    blamed = seeds(opened.state.graph, opened.traceback, opened.expected.message, opened.record.nodes)
    deadline = time.monotonic() + budget_seconds

    def once() -> Reduction:
        try:
            found = search(
                opened.state,
                oracle,
                seeds=blamed,
                width=oracle.workers.count,
                budget_seconds=max(1.0, deadline - time.monotonic()),
                listener=keeper,
            )
            if found.state is not opened.state or not found.complete or oracle([opened.state])[0]:
                if found.complete:
                    oracle.look_again(found.state, failed=True)
                return found
            nothing = None
        except NothingFails as error:
            nothing = error
        oracle.look_again(opened.state, failed=False)
        raise _why_not(oracle, folder) from nothing

    try:
        reduction = once()
    except ComesSometimes as sometimes:
        keeper.said(f"case {folder.case.id}: {sometimes}")
        reduction = once()
    if reduction.state is opened.state:
        keeper.smaller("nothing", reduction.state)
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


@dataclass
class _Keeper:
    """Passes everything on, and puts each smaller repro on disk before the search goes on."""

    folder: CaseFolder
    opened: OpenedCase
    listener: Listener

    def started(self, state: State) -> None:
        self.listener.started(state)

    def asked(self, reducer: str, what: str, failed: Sequence[bool | None]) -> None:
        self.listener.asked(reducer, what, failed)

    def said(self, text: str) -> None:
        self.listener.said(text)

    def smaller(self, reducer: str, state: State) -> None:
        calls = calls_of(state.graph)
        text = exact_script(self.folder, self.opened, state)
        update_case(self.folder, {f"checkpoints/{calls}.py": text, REPRO: text})
        self.listener.smaller(reducer, state)


def _minified(reduction: Reduction, folder: CaseFolder, written: Written, seconds: float) -> Minified:
    state = reduction.state
    text = folder.file(REPRO).read_text(encoding="utf-8")
    kept = sum(i.value.untyped_storage().nbytes() for i in state.inputs if i.value is not None)
    return Minified(
        calls=reduction.calls,
        inputs=len(state.inputs),
        ops=tuple(print_graph(state.graph).ops),
        queries=reduction.queries,
        seconds=seconds,
        input_bytes=kept if written.input_bytes is None else written.input_bytes,
        lines=len(text.splitlines()),
    )
