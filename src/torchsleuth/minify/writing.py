"""The minimal state as a script: the most readable form that still fails in fresh processes becomes repro.py.

A small function under `torch.compile` first, then one with operators by name, then the graph handed to the inner
compiler, and last the exact script, which does what the trial did.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from torchsleuth.cases.folder import CaseFolder, update_case
from torchsleuth.compare.verdict.evidence import MUTATED
from torchsleuth.graphs.cut import calls_of
from torchsleuth.graphs.writes import written_inputs
from torchsleuth.minify.case_state import OpenedCase
from torchsleuth.minify.oracle import trial_of
from torchsleuth.minify.search.contract import State
from torchsleuth.minify.tolerances import distance_of
from torchsleuth.repro.script import script_text
from torchsleuth.repro.small import SmallGraph, SmallInput, SmallScript, small_scripts
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.supervise.interpreter import Prestarted
from torchsleuth.supervise.scripts import PHASE_SECONDS, ScriptRun, run_script
from torchsleuth.workers.failure_rate import FailureRate

REPRO = "repro.py"
VERIFY_TIMES = 3
# A failure that comes only sometimes is shown by more runs, but not by more than anyone waits for.
MOST_TIMES = 10
# What the verification gets in any case: a search that used up its time still ends with an answer.
LEAST_SECONDS = 20.0


@dataclass(frozen=True)
class Verification:
    """How scripts are verified: where, until when, how many at once, and how often the failure comes at all."""

    early: Prestarted | None
    deadline: float | None = None
    at_once: int = VERIFY_TIMES
    rate: FailureRate | None = None
    # The traceback of a state that failed, for the test that a small script makes.
    text: str = ""

    @property
    def times(self) -> int:
        return VERIFY_TIMES if self.rate is None else max(VERIFY_TIMES, min(MOST_TIMES, self.rate.repeats))

    def in_words(self, device: str) -> str:
        """What the processes were in which the script ran, for whoever reads the case."""
        cache = "an empty kernel cache each"
        if self.early is None or device != "cpu":
            return f"{self.times} interpreters started for it; {cache}"
        return f"{self.times} forks of an interpreter that had loaded torch and compiled nothing; {cache}"

    def holds(self, runs: list[ScriptRun]) -> bool:
        """Whether the script fails as it should: every time, or, where that comes only sometimes, never otherwise."""
        if self.rate is None:
            return bool(runs) and all(run.reproduced for run in runs)
        return any(run.reproduced for run in runs) and not any(run.answer == "different" for run in runs)


@dataclass(frozen=True)
class Written:
    """The script that became repro.py: its form, the bytes of input data in it, and how its runs ended."""

    form: str
    runs: tuple[ScriptRun, ...]
    holds: bool
    input_bytes: int | None = None


def write_repro(folder: CaseFolder, opened: OpenedCase, state: State, how: Verification) -> Written:
    """Tries the readable forms in fresh processes; the first that fails the same way becomes repro.py.

    >>> write_repro(folder, opened, reduction.state, Verification(Prestarted())).form
    'function'
    """
    for script in small_scripts(small_graph(folder, opened, state, how.text)):
        path = _beside(folder, script)
        runs = verified_runs(folder, path, how)
        if how.holds(runs):
            update_case(folder, {REPRO: script.text, **_data_files(folder, script)})
            return Written(script.form, tuple(runs), True, script.input_bytes)
        if how.deadline is not None and time.monotonic() > how.deadline:
            break
    update_case(folder, {REPRO: exact_script(folder, opened, state)})
    runs = verified_runs(folder, folder.file(REPRO), how)
    return Written("exact", tuple(runs), how.holds(runs))


def _beside(folder: CaseFolder, script: SmallScript) -> Path:
    """The script as a checkpoint, with its data where it will look for it."""
    place = folder.file("checkpoints")
    place.mkdir(exist_ok=True)
    for name, data in script.files.items():
        (place / name).write_bytes(data)
    path = place / f"{script.form}.py"
    path.write_text(script.text, encoding="utf-8")
    return path


def _data_files(folder: CaseFolder, script: SmallScript) -> dict[str, Path]:
    return {name: folder.file("checkpoints") / name for name in script.files}


def verified_runs(folder: CaseFolder, script: Path, how: Verification) -> list[ScriptRun]:
    """Runs in fresh processes with fresh caches; a device's driver does not survive a fork, so there each by itself."""
    case = folder.case
    hangs = case.kind == "hang"
    # The clock of a hang is the one it was caught under, with room for a loaded machine; it takes all of it.
    clock = max(20.0, float(case.extra.get("timeout") or 30.0) * 1.5) if hangs else PHASE_SECONDS
    least = time.monotonic() + LEAST_SECONDS + (clock if hangs else 0.0)
    deadline = None if how.deadline is None else max(how.deadline, least)
    if how.early is not None and case.device == "cpu":
        return how.early.verify(
            script, case.signature, how.times, at_once=how.at_once, phase_seconds=clock, deadline=deadline
        )

    def once(_: int) -> ScriptRun:
        return run_script(script, case.signature, phase_seconds=clock, deadline=deadline)

    with ThreadPoolExecutor(max(1, how.at_once)) as pool:
        return list(pool.map(once, range(how.times)))


def exact_script(folder: CaseFolder, opened: OpenedCase, state: State) -> str:
    """The script that does exactly what the trial did, with everything it needs pasted in."""
    trial = trial_of(state, opened.expected, folder.file("inputs"))
    lines = opened.record.nodes
    record = replace(
        opened.record,
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
        opened.expected.to_json(),
        inputs=trial.inputs,
        tolerances=trial.tolerances,
        case=folder.case.id,
        name=REPRO,
    )


def small_graph(folder: CaseFolder, opened: OpenedCase, state: State, text: str = "") -> SmallGraph:
    """The state as what a small script is written from."""
    accuracy = opened.expected.kind == "accuracy"
    return SmallGraph(
        graph=state.graph,
        inputs=tuple(SmallInput(i.name, i.spec, i.value) for i in state.inputs),
        settings=state.settings,
        signature=_own_signature(opened.expected, state),
        embedded=state.embedded,
        dynamic=bool(state.symbols),
        tolerance=distance_of(state) if accuracy else None,
        case=folder.case.id,
        text=text,
    )


def _own_signature(signature: Signature, state: State) -> Signature:
    """The results that a wrong one names are those of the small graph, not of the one it was cut from."""
    if signature.kind != "accuracy":
        return signature
    outputs = [f"outputs[{i}]" for i in range(len(state.graph.graph.output_node().all_input_nodes))]
    written = written_inputs(state.graph)
    outputs += [f"inputs[{i}]{MUTATED}" for i, given in enumerate(state.inputs) if given.name in written]
    return replace(signature, outputs=tuple(outputs))
