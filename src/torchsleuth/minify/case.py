"""`minify` of a case: search, keep every smaller repro on disk at once, write it readably, and verify it.

Stopping at any time leaves the best repro so far; what was asked is in the log of trials, so the same command goes on
where it was stopped. A case that does not fail here, or fails differently, ends with one sentence that says so.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchsleuth.cases.folder import CaseFolder, update_case
from torchsleuth.cases.model import Minified, Verified
from torchsleuth.cases.signature import Signature
from torchsleuth.graphs.cut import calls_of
from torchsleuth.graphs.printer import print_graph
from torchsleuth.minify.blame import seeds
from torchsleuth.minify.contract import Listener, Reduction, Silence, State
from torchsleuth.minify.explain import Explanation, explain
from torchsleuth.minify.opened import CannotMinify, OpenedCase, open_for_search
from torchsleuth.minify.search import search
from torchsleuth.minify.states import warm_up
from torchsleuth.minify.subsets import NothingFails
from torchsleuth.minify.tolerances import tolerances_of
from torchsleuth.minify.trials import TrialOracle, facts_of
from torchsleuth.repro.script import script_text
from torchsleuth.repro.small import SmallGraph, SmallInput, SmallScript, small_scripts
from torchsleuth.tensors.specs import TensorSpec
from torchsleuth.workers.fresh import PHASE_SECONDS, ScriptRun, run_script
from torchsleuth.workers.limits import Limits
from torchsleuth.workers.pool import Workers

VERIFY_TIMES = 3
REPRO = "repro.py"


@dataclass(frozen=True)
class MinifyResult:
    """What came of it: the case as it stands now, the reduction, which form the repro has, and what else failed."""

    folder: CaseFolder
    reduction: Reduction
    form: str
    runs: tuple[ScriptRun, ...]
    explanation: Explanation
    also: tuple[str, ...] = ()
    seconds: float = 0.0
    trial_seconds: float = 0.0

    @property
    def verified(self) -> bool:
        return bool(self.runs) and all(run.reproduced for run in self.runs)


def minify_case(
    folder: CaseFolder,
    *,
    budget_seconds: float = 600.0,
    workers: Workers,
    listener: Listener | None = None,
    early: Prestarted | None = None,
) -> MinifyResult:
    """Makes the smallest repro of a case that still fails the same way, and verifies it three times.

    `early` is an interpreter for the verification that was started before; it is closed at the end.

    >>> minify_case(open_case("torchsleuth-cases", "last"), budget_seconds=60, workers=Workers(2)).reduction.calls
    1
    """
    started = time.monotonic()
    warm_up()
    opened = open_for_search(folder)
    keeper = _Keeper(folder, opened, listener or Silence())
    # Beside the case's own values, so that workers which see the case see these as well; gone when the search is over.
    store = folder.path / ".trials"
    oracle = TrialOracle(workers, opened.expected, store, _limits(folder, workers.limits))
    try:
        reduction = _searched(folder, opened, oracle, keeper, budget_seconds)
        seconds = round(time.monotonic() - started, 2)
        in_time = seconds < budget_seconds and not oracle.failing_is_slow
        with ThreadPoolExecutor(1) as beside:  # fresh processes start slowly: meanwhile the rest is asked
            writing = beside.submit(_written, folder, opened, reduction.state, workers.count)
            explanation = explain(reduction.state, oracle) if in_time else Explanation(())
            form, script, runs = writing.result()
    finally:
        shutil.rmtree(store, ignore_errors=True)
    reproduced = sum(run.reproduced for run in runs)
    folder = update_case(
        folder,
        _beside(explanation, oracle),
        minified=_minified(reduction, folder, script, seconds),
        verified=Verified(len(runs), reproduced, reproduced == len(runs)),
        extra=_more(explanation, oracle),
    )
    also = tuple(_more(explanation, oracle)["also"])
    whole = round(time.monotonic() - started, 2)
    return MinifyResult(
        folder, reduction, form, tuple(runs), explanation, also, whole, round(oracle.trial_seconds, 2)
    )


def _searched(
    folder: CaseFolder, opened: OpenedCase, oracle: TrialOracle, keeper: _Keeper, budget_seconds: float
) -> Reduction:
    """The search itself; raises `CannotMinify` where nothing of the case fails as it failed."""
    lines = opened.record.get("nodes") or {}
    try:
        reduction = search(
            opened.state,
            oracle,
            seeds=seeds(opened.state.graph, opened.traceback, opened.expected.message, lines),
            width=oracle.workers.count,
            budget_seconds=max(1.0, budget_seconds),
            listener=keeper,
        )
    except NothingFails as nothing:
        raise _why_not(oracle, folder) from nothing
    if reduction.state is opened.state:
        if reduction.complete and not oracle([opened.state])[0]:
            raise _why_not(oracle, folder)
        keeper.smaller("nothing", reduction.state)
    return reduction


def _more(explanation: Explanation, oracle: TrialOracle) -> dict[str, Any]:
    """What case.json says beyond the contract's sections."""
    also = sorted(signature.summary for signature, _ in oracle.also.values())
    return {
        "explanation": {"may_vary": list(explanation.sentences), "passes_with": explanation.difference},
        "also": also,
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


def _limits(folder: CaseFolder, limits: Limits) -> Limits:
    """A hang is told by its clock: the one it was caught under, not the one for slow machines."""
    if folder.case.kind != "hang":
        return limits
    clock = float(folder.case.extra.get("timeout") or 30.0)
    return replace(limits, compile=clock, run=clock)


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
        f"case {case.id} does not fail here any more; "
        f"if it fails only sometimes, run `torchsleuth verify {case.id} --times 10`"
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


def exact_script(folder: CaseFolder, opened: OpenedCase, state: State) -> str:
    """The script that does exactly what the trial did, with everything it needs pasted in."""
    printed = print_graph(state.graph)
    facts = facts_of(state, printed.constants, folder.file("inputs"), opened.expected.kind)
    record: dict[str, Any] = {
        **opened.record,
        **facts,
        "calls": printed.calls,
        "imports": list(printed.imports),
    }
    record["source_lines"] = _user_lines(opened.record, state)
    return script_text(
        record,
        printed.source,
        opened.expected.to_json(),
        inputs=facts["inputs"],
        tolerances=facts["tolerances"],
        case=folder.case.id,
        name=REPRO,
    )


def _user_lines(record: Mapping[str, Any], state: State) -> list[str]:
    known = record.get("nodes") or {}
    found = [known[n.name] for n in state.graph.graph.nodes if n.name in known]
    return list(dict.fromkeys(f"{Path(line['file']).name}:{line['line']}" for line in found))


def _written(
    folder: CaseFolder, opened: OpenedCase, state: State, width: int
) -> tuple[str, SmallScript | None, list[ScriptRun]]:
    """Tries the readable forms in fresh processes; the first that fails the same way becomes repro.py."""
    for script in small_scripts(_small(folder, opened, state)):
        folder.file("checkpoints").mkdir(exist_ok=True)
        path = folder.file(f"checkpoints/{script.form}.py")
        path.write_text(script.text, encoding="utf-8")
        runs = _verify(folder, path, width)
        if all(run.reproduced for run in runs):
            update_case(folder, {REPRO: script.text})
            return script.form, script, runs
    text = exact_script(folder, opened, state)
    update_case(folder, {REPRO: text})
    return "exact", None, _verify(folder, folder.file(REPRO), width)


def _small(folder: CaseFolder, opened: OpenedCase, state: State) -> SmallGraph:
    return SmallGraph(
        graph=state.graph,
        inputs=tuple(SmallInput(i.name, i.spec, i.value) for i in state.inputs),
        facts=state.settings,
        signature=_own_signature(opened.expected, state),
        embedded=state.settings.get("embedded") or {},
        dynamic=bool(state.symbols),
        tolerance=max(tolerances_of(state).values(), default=None)
        if opened.expected.kind == "accuracy"
        else None,
        case=folder.case.id,
    )


def _own_signature(signature: Signature, state: State) -> Signature:
    """The outputs that a wrong result names are those of the small graph, not of the one it was cut from."""
    if signature.kind != "accuracy":
        return signature
    count = len(state.graph.graph.output_node().all_input_nodes)
    return replace(signature, outputs=tuple(f"outputs[{place}]" for place in range(count)))


def _verify(folder: CaseFolder, script: Path, width: int) -> list[ScriptRun]:
    """Three runs in fresh processes with fresh caches, at once where there is more than one worker."""
    case = folder.case
    clock = (
        max(20.0, float(case.extra.get("timeout") or 30.0) * 1.5) if case.kind == "hang" else PHASE_SECONDS
    )

    def once(_: int) -> ScriptRun:
        return run_script(script, case.signature, phase_seconds=clock)

    with ThreadPoolExecutor(VERIFY_TIMES if width > 1 else 1) as pool:
        return list(pool.map(once, range(VERIFY_TIMES)))


def _minified(
    reduction: Reduction, folder: CaseFolder, script: SmallScript | None, seconds: float
) -> Minified:
    state = reduction.state
    text = folder.file(REPRO).read_text(encoding="utf-8")
    kept = sum(i.value.untyped_storage().nbytes() for i in state.inputs if i.value is not None)
    return Minified(
        calls=reduction.calls,
        inputs=len(state.inputs),
        ops=tuple(print_graph(state.graph).ops),
        queries=reduction.queries,
        seconds=seconds,
        input_bytes=kept if script is None else script.input_bytes,
        lines=len(text.splitlines()),
    )
