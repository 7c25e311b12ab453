"""Which of the scripts that a search wrote becomes repro.py: the most readable one that fails in fresh processes.

A small function under `torch.compile` comes first, the exact script, which needs a runtime file beside it, last.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torchsleuth.core.cases.folder import CaseFolder, open_case, update_case
from torchsleuth.core.cases.model import Case, Verified
from torchsleuth.core.criteria import Answer
from torchsleuth.core.processes.limits import seconds_of_a_hang
from torchsleuth.front.supervise.scripts import PHASE_SECONDS, ScriptRun, ScriptRunner
from torchsleuth.script_runtime.signature import Signature

REPRO = "repro.py"
CHECKPOINTS = "checkpoints"
# What the verification gets in any case: a search that used up its time still ends with an answer.
LEAST_SECONDS = 20.0
# Several at once share the cores.
ROOM_FOR_OTHERS = 1.5


@dataclass(frozen=True)
class ScriptToVerify:
    """A script under checkpoints/: its form (function, ..., exact), the data files beside it, the bytes in them.

    One that `needs_inputs` finds the case's kept values only in its final place; one of `random` inputs is for where
    eager refuses the plain ones.
    """

    form: str
    files: tuple[str, ...] = ()
    input_bytes: int | None = None
    needs_inputs: bool = False
    random: bool = False

    @property
    def name(self) -> str:
        return f"{CHECKPOINTS}/{self.form}{'_random' if self.random else ''}.py"

    def to_json(self) -> dict[str, Any]:
        """As a message to another process."""
        return asdict(self)


def script_from_json(doc: Mapping[str, Any]) -> ScriptToVerify:
    """What `ScriptToVerify.to_json` wrote."""
    return ScriptToVerify(**{**doc, "files": tuple(doc["files"])})


@dataclass(frozen=True)
class VerifiedRepro:
    """The script that became repro.py, how its runs ended, and whether it fails as it should.

    `eager` is a run of it without the compiler; `needs_eager` where that one must pass.
    """

    script: ScriptToVerify
    runs: tuple[ScriptRun, ...]
    fails: bool
    eager: ScriptRun
    needs_eager: bool

    @property
    def reproduced(self) -> int:
        return sum(run.reproduced for run in self.runs)

    @property
    def told_nothing(self) -> bool:
        return all(run.answer is Answer.CANNOT_TELL for run in self.runs)

    @property
    def holds(self) -> bool:
        return self.fails and not (self.needs_eager and passes_in_eager(self.eager) is False)

    def to_case(self) -> Verified:
        """What the case says of it."""
        eager = passes_in_eager(self.eager)
        why = fails_in_eager(self.eager) if self.needs_eager and eager is False else None
        if self.runs and self.told_nothing:
            why = self.runs[0].summary
        return Verified(len(self.runs), self.reproduced, self.holds, why, eager)


def passes_in_eager(run: ScriptRun) -> bool | None:
    """Whether a run without the compiler passed; None where it told nothing.

    >>> passes_in_eager(ScriptRun(Answer.PASSES, "NOT REPRODUCED", 1.0))
    True
    """
    return None if run.answer is Answer.CANNOT_TELL else run.answer is Answer.PASSES


def fails_in_eager(run: ScriptRun) -> str:
    """The sentence about a script that fails without the compiler, too."""
    return f"it fails without the compiler, too ({run.summary}), so it does not show a bug of the compiler's"


def phase_clock(case: Case) -> float:
    """Seconds that compiling or running may take in a script of the case; a hang has a clock by its number of calls."""
    if case.kind != "hang":
        return PHASE_SECONDS
    whole = None if case.graph is None else case.graph.calls
    left = whole if case.minified is None or case.minified.calls is None else case.minified.calls
    return seconds_of_a_hang(case.extra.get("timeout"), left)


def verified_repro(
    folder: CaseFolder,
    scripts: Sequence[ScriptToVerify],
    runner: ScriptRunner,
    *,
    times: int,
    at_once: int = 3,
    always: bool = True,
    in_eager: bool = True,
    deadline: float | None = None,
) -> VerifiedRepro:
    """Runs the scripts in turn; the first that fails the same way, or the last, becomes repro.py.

    A failure that does not come `always` holds where it came at all and nothing else did. With `in_eager` a script has
    to pass without the compiler; where none does, the first that fails is taken, and told so.
    """
    # How many calls are left is known since the scripts were written.
    clock = phase_clock(open_case(folder.path.parent, str(folder.path)).case)
    best: VerifiedRepro | None = None
    # With no time left only these are tried after the first: the small ones that do what the trials did.
    most_exact = [each.form for each in scripts if not each.needs_inputs][-1:]
    refused = False  # by eager: plain inputs, for which random ones stand in
    for script in scripts:
        late = deadline is not None and time.monotonic() > deadline
        if best is not None and late and (script.form not in most_exact or best.told_nothing):
            continue
        if script.random and not refused:
            continue
        if script.needs_inputs:
            _put(folder, script)
        longest = clock if folder.case.kind == "hang" else runner.longest_alone
        least = time.monotonic() + max(LEAST_SECONDS, ROOM_FOR_OTHERS * longest)
        runs = _Runs(
            runner,
            folder.file(REPRO if script.needs_inputs else script.name),
            folder.case.signature,
            clock,
            None if deadline is None else max(deadline, least),
        )
        with ThreadPoolExecutor(1) as beside, runner.stopped_with_us():
            eager = beside.submit(runs.eager)
            # Then it is no better than the one that is there.
            worse = best is not None and best.fails and passes_in_eager(eager.result()) is False
            done = [] if worse else runs.times(times, at_once, always)
        refused = passes_in_eager(eager.result()) is False
        if worse:
            continue
        found = VerifiedRepro(script, tuple(done), _holds(done, always), eager.result(), in_eager)
        best = found if best is None or not best.fails or found.holds else best
        if found.holds:
            break
    assert best is not None
    _put(folder, best.script)
    return best


@dataclass(frozen=True)
class _Runs:
    """Runs of one script."""

    runner: ScriptRunner
    script: Path
    expected: Signature
    clock: float
    deadline: float | None

    def eager(self) -> ScriptRun:
        """One run without the compiler."""
        return self.runner.run(
            self.script,
            self.expected,
            phase_seconds=self.clock,
            deadline=self.deadline,
            compiles=False,
        )

    def times(self, times: int, at_once: int, always: bool) -> list[ScriptRun]:
        """The runs that are asked for; one alone where the failure comes `always` and that one does not show it.

        Hangs are waited for together: each takes its whole clock.
        """
        first = self._times(1, 1) if always and self.expected.kind != "hang" else []
        if times == len(first) or not all(run.reproduced for run in first):
            return first
        return first + self._times(times - len(first), at_once)

    def _times(self, times: int, at_once: int) -> list[ScriptRun]:
        return self.runner.run_times(
            self.script,
            self.expected,
            times,
            at_once=at_once,
            phase_seconds=self.clock,
            deadline=self.deadline,
        )


def _put(folder: CaseFolder, script: ScriptToVerify) -> None:
    files = {name: folder.file(f"{CHECKPOINTS}/{name}") for name in script.files}
    update_case(folder, {REPRO: folder.text(script.name), **files})


def _holds(runs: Sequence[ScriptRun], always: bool) -> bool:
    if always:
        return bool(runs) and all(run.reproduced for run in runs)
    return any(run.reproduced for run in runs) and not any(run.answer is Answer.OTHER for run in runs)


def in_words(runner: ScriptRunner, times: int) -> str:
    """What the processes were in which the script ran, for whoever reads the case."""
    cache = "an empty kernel cache each"
    if not runner.forks:
        return f"{times} interpreters started for it; {cache}"
    forks = "of an interpreter that had loaded torch and compiled nothing"
    if runner.hides_devices:
        return f"{times - 1} forks {forks}, without devices, and an interpreter started for it; {cache}"
    return f"{times} forks {forks}; {cache}"
