"""Which of the scripts that a search wrote becomes repro.py: the most readable one that fails in fresh processes.

A small function under `torch.compile` comes first, the exact script, which does what the trial did, last.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torchsleuth.cases.answer import Answer
from torchsleuth.cases.folder import CaseFolder, update_case
from torchsleuth.cases.model import Case
from torchsleuth.processes.limits import hang_seconds
from torchsleuth.supervise.scripts import PHASE_SECONDS, ScriptRun, ScriptRunner

REPRO = "repro.py"
CHECKPOINTS = "checkpoints"
# What the verification gets in any case: a search that used up its time still ends with an answer.
LEAST_SECONDS = 20.0
# A hang takes all of its clock, and a loaded machine is slower than the one it was caught on.
ROOM_FOR_LOAD = 1.5


@dataclass(frozen=True)
class ScriptToVerify:
    """A script under checkpoints/: its form (function, ..., exact), the data files beside it, the bytes in them.

    One that `needs_inputs` finds the case's kept values only in its final place.
    """

    form: str
    files: tuple[str, ...] = ()
    input_bytes: int | None = None
    needs_inputs: bool = False

    @property
    def name(self) -> str:
        return f"{CHECKPOINTS}/{self.form}.py"

    def to_json(self) -> dict[str, Any]:
        """As a message to another process."""
        return asdict(self)


def script_from_json(doc: Mapping[str, Any]) -> ScriptToVerify:
    """What `ScriptToVerify.to_json` wrote."""
    return ScriptToVerify(doc["form"], tuple(doc["files"]), doc["input_bytes"], doc["needs_inputs"])


@dataclass(frozen=True)
class VerifiedRepro:
    """The script that became repro.py, how its runs ended, and whether it fails as it should."""

    script: ScriptToVerify
    runs: tuple[ScriptRun, ...]
    holds: bool

    @property
    def reproduced(self) -> int:
        return sum(run.reproduced for run in self.runs)


def phase_clock(case: Case) -> float:
    """Seconds that compiling or running may take in a script of the case; a hang has the clock it was caught under."""
    if case.kind != "hang":
        return PHASE_SECONDS
    return max(LEAST_SECONDS, hang_seconds(case.extra.get("timeout")) * ROOM_FOR_LOAD)


def verified_repro(
    folder: CaseFolder,
    scripts: Sequence[ScriptToVerify],
    runner: ScriptRunner,
    *,
    times: int,
    at_once: int = 3,
    always: bool = True,
    deadline: float | None = None,
) -> VerifiedRepro:
    """Runs the scripts in turn; the first that fails the same way, or the last, becomes repro.py.

    A failure that does not come `always` holds where it came at all and nothing else did.
    """
    clock = phase_clock(folder.case)
    for place, script in enumerate(scripts):
        last = place == len(scripts) - 1
        if place and not last and deadline is not None and time.monotonic() > deadline:
            continue  # with no time left only the exact one, which does what the trials did
        if script.needs_inputs:
            _put(folder, script)
        least = time.monotonic() + LEAST_SECONDS + (clock if folder.case.kind == "hang" else 0.0)
        runs = runner.run_times(
            folder.file(REPRO if script.needs_inputs else script.name),
            folder.case.signature,
            times,
            at_once=at_once,
            phase_seconds=clock,
            deadline=None if deadline is None else max(deadline, least) if last else deadline,
        )
        if last or _holds(runs, always):
            break
    _put(folder, script)
    return VerifiedRepro(script, tuple(runs), _holds(runs, always))


def _put(folder: CaseFolder, script: ScriptToVerify) -> None:
    files = {name: folder.file(f"{CHECKPOINTS}/{name}") for name in script.files}
    update_case(folder, {REPRO: folder.file(script.name).read_text(encoding="utf-8"), **files})


def _holds(runs: Sequence[ScriptRun], always: bool) -> bool:
    if always:
        return bool(runs) and all(run.reproduced for run in runs)
    return any(run.reproduced for run in runs) and not any(run.answer is Answer.OTHER for run in runs)


def in_words(runner: ScriptRunner, times: int) -> str:
    """What the processes were in which the script ran, for whoever reads the case."""
    cache = "an empty kernel cache each"
    if not runner.forks:
        return f"{times} interpreters started for it; {cache}"
    return f"{times} forks of an interpreter that had loaded torch and compiled nothing; {cache}"
