"""Which of the scripts that a search wrote becomes repro.py: the most readable one that fails in fresh processes.

A small function under `torch.compile` comes first, the exact script, which needs a runtime file beside it, last.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from torchsleuth.core.cases.model import Verified
from torchsleuth.core.change_table import UNCOMPILED
from torchsleuth.core.criteria import Answer
from torchsleuth.core.protocol.steps import CHECKPOINTS, REPRO, ScriptToVerify, Verification
from torchsleuth.front.supervise.case_at_work import CaseAtWork, phase_clock
from torchsleuth.front.supervise.scripts import ScriptRun, ScriptRunner

# What the verification gets in any case: a search that used up its time still ends with an answer.
LEAST_SECONDS = 20.0
# Several at once share the cores.
ROOM_FOR_OTHERS = 1.5


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


def verified_repro(case: CaseAtWork, wanted: Verification) -> VerifiedRepro:
    """Runs the scripts in turn; the first that fails the same way, or the last, becomes repro.py.

    Where none passes without the compiler, as it has to, the first that fails is taken, and told so.
    """
    best: VerifiedRepro | None = None
    # With no time left only these are tried after the first: the small ones that do what the trials did.
    most_exact = [each.form for each in wanted.scripts if not each.needs_inputs][-1:]
    longest = phase_clock(case.case) if case.case.kind == "hang" else case.processes.scripts.longest_alone
    refused = False  # by eager: plain inputs, for which random ones stand in
    for script in wanted.scripts:
        if best is not None and case.left < 0 and (script.form not in most_exact or best.told_nothing):
            continue
        if script.random and not refused:
            continue
        if script.needs_inputs:
            _put(case, script)
        name = REPRO if script.needs_inputs else script.name
        least = time.monotonic() + max(LEAST_SECONDS, ROOM_FOR_OTHERS * longest)
        at_work = replace(case, deadline=max(case.deadline, least))
        with ThreadPoolExecutor(1) as beside, case.processes.scripts.stopped_with_us():
            uncompiled = beside.submit(at_work.ask, name, UNCOMPILED)
            # Then it is no better than the one that is there.
            worse = best is not None and best.fails and passes_in_eager(uncompiled.result()) is False
            runs = [] if worse else _runs(at_work, name, wanted)
        eager = uncompiled.result()
        refused = passes_in_eager(eager) is False
        if worse:
            continue
        found = VerifiedRepro(script, tuple(runs), _holds(runs, wanted.always), eager, wanted.in_eager)
        best = found if best is None or not best.fails or found.holds else best
        if found.holds:
            break
    assert best is not None
    _put(case, best.script)
    return best


def _runs(case: CaseAtWork, name: str, wanted: Verification) -> list[ScriptRun]:
    """The runs that are asked for; one alone where the failure comes `always` and that one does not show it.

    Hangs are waited for together: each takes its whole clock.
    """
    first = case.ask_times(name, 1) if wanted.always and case.case.kind != "hang" else []
    if wanted.times == len(first) or not all(run.reproduced for run in first):
        return first
    return first + case.ask_times(name, wanted.times - len(first), wanted.at_once)


def _put(case: CaseAtWork, script: ScriptToVerify) -> None:
    files = {name: case.folder.file(f"{CHECKPOINTS}/{name}") for name in script.files}
    case.write({REPRO: case.folder.text(script.name), **files})


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
