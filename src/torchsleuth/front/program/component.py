"""Which component makes a whole program fail: it is run again and again, with less of the compiler or another setting.

A run fails where the program ends as badly as it did at first: with a status, by a signal, or not in time. The least
of the compiler that fails names the component; where only all of it does, settings may tell which part of the backend.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchsleuth.core.cases.model import Rung, Triage
from torchsleuth.core.change_table import (
    DECOMPOSED,
    EMPTY_CACHE,
    FAKE_KERNELS_OF_PROGRAM,
    OWN_CACHE,
    RUNGS,
    SAME_NUMBERS,
    SETTINGS,
    UNCOMPILED,
    first_that_passes,
    least_that_fails,
)
from torchsleuth.core.changes import NOTHING, Change
from torchsleuth.core.criteria import Answer, answer_of_run
from torchsleuth.front.program.runs import Program, ProgramRun, compile_cache, run_program, watch_program

MISMATCH = re.compile(r"(?:FakeMismatch|SchemaMismatch): .+")
# Failures that no setting about numbers can be the cause of.
NOT_NUMBERS = ("compile_error", "crash", "hang", "capture_error", "runtime_error")


AT_TIMES = "with nothing changed it did not fail again: it fails at times"


@dataclass(frozen=True)
class ProgramFinding:
    """Who is at fault in a program, with no component where it does not fail; `case` is that of its first failure."""

    triage: Triage
    case: str | None


def component_of_program(
    argv: Sequence[str],
    *,
    cases_dir: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
    timeout: float | None = None,
) -> ProgramFinding:
    """Which component makes a program fail: a script with its arguments, or a whole command.

    `timeout` is how long one run may take; a run that takes longer counts as one that hangs. What
    `component_of_program(["train.py", "--epochs", "1"]).triage.component` says is, for one, "decompositions".
    """
    program = program_named(argv)
    say("trying: the program as it is")
    first = watch_program(program, NOTHING, timeout=timeout, cases_dir=cases_dir)
    return _Climb(program, first, say, timeout).climb()


def component_by_runs(
    program: Program, first: ProgramRun, uncompiled: ProgramRun, say: Callable[[str], None], timeout: float
) -> Triage:
    """Which component makes a program fail that was seen to end as `first` says, and as `uncompiled` with none of it.

    Used as `component_by_runs(program, ProgramRun(1, 9.0, tail="TypeError: no"), ProgramRun(0, 8.0), print, 60)`.
    """
    return _Climb(program, first, say, timeout, own_cache=True).climb(uncompiled).triage


def program_named(argv: Sequence[str]) -> Program:
    """The command for a script: `program_named(["train.py"])`; any other command as it is."""
    words = list(argv)
    return Program((sys.executable, *words) if words[0].endswith(".py") else tuple(words))


@dataclass
class _Climb:
    """The program, how it ended at first, and what its other runs said so far."""

    program: Program
    first: ProgramRun
    say: Callable[[str], None]
    timeout: float | None
    # Whether the first run could answer from what was compiled before.
    own_cache: bool = False
    rungs: list[Rung] = field(default_factory=list)

    def climb(self, uncompiled: ProgramRun | None = None) -> ProgramFinding:
        self._note("the program as it is", self.first)
        if self.first.healthy:
            return self._finding(None, None, "the program does not fail", pinned=False)
        if uncompiled is not None:
            self._note(UNCOMPILED.what, uncompiled)
        if answer_of_run(self.first, uncompiled or self._run(UNCOMPILED)) is Answer.FAILS:
            return self._finding("program", None, "it fails the same way when nothing is compiled")
        # Each of these holds the ones before it: where the last passes, the others need not be run.
        last = self._answer(DECOMPOSED)
        below = self._below(last) if last is not Answer.PASSES else None
        return below or self._mismatch() or self._full()

    def _below(self, last: Answer) -> ProgramFinding | None:
        """The first step before Inductor that fails."""
        found = least_that_fails(RUNGS, lambda rung: last if rung is DECOMPOSED else self._answer(rung))
        if found is None:
            return None
        rung, _ = found
        if rung is DECOMPOSED and self._answer(SAME_NUMBERS) is Answer.PASSES:
            return self._cured(SAME_NUMBERS)
        detail = f"it fails with this much of the compiler already: {rung.what}"
        return self._finding(rung.component, rung.part, detail)

    def _cured(self, change: Change) -> ProgramFinding:
        lines = tuple(change.how.splitlines())
        detail = f"it passes with {' and '.join(lines)}"
        return self._finding(change.component, change.part, detail, flags=lines)

    def _mismatch(self) -> ProgramFinding | None:
        """An operator whose fake kernel says something else than the real one; that shows only when it runs."""
        if any(case.get("phase") != "run" for case in self.first.cases):
            return None
        checked = FAKE_KERNELS_OF_PROGRAM
        found = MISMATCH.search(self._run(checked).tail)
        return self._finding(checked.component, checked.part, found[0][:300]) if found else None

    def _full(self) -> ProgramFinding:
        """The full backend is at fault; for wrong numbers, settings may say which part of it."""
        cases = self.first.cases
        backend = str(cases[0].get("backend")) if cases else "inductor"
        if backend not in ("inductor", "none"):
            return self._finding("backend", backend, f"only the backend {backend} fails")
        if self.own_cache and self._answer(EMPTY_CACHE) is Answer.PASSES:
            return self._not_anew()
        if self.first.timed_out or any(case.get("kind") in NOT_NUMBERS for case in cases):
            return self._finding("inductor", None, "it fails only with the full compiler")
        cure = first_that_passes(SETTINGS, self._answer)
        if cure is not None:
            return self._cured(cure)
        return self._finding("inductor", None, "it fails only with the full compiler, whatever the settings")

    def _not_anew(self) -> ProgramFinding:
        """It passes once the compile cache is empty: what lies there is wrong, or it fails only at times."""
        if self._answer(OWN_CACHE) is Answer.FAILS:
            return self._finding(EMPTY_CACHE.component, EMPTY_CACHE.part, cached_code())
        return self._finding(None, None, AT_TIMES, pinned=False)

    def _answer(self, change: Change) -> Answer:
        return answer_of_run(self.first, self._run(change))

    def _run(self, change: Change) -> ProgramRun:
        self.say(f"trying: {change.what}")
        run = run_program(self.program, change, timeout=self.timeout)
        self._note(change.what, run)
        return run

    def _note(self, what: str, run: ProgramRun) -> None:
        answer = answer_of_run(self.first, run)
        how = "" if run.healthy else ", not in time" if run.timed_out else f", status {run.status}"
        self.say(f"{what}: {answer.value}{how} ({run.seconds:.0f} s)")
        self.rungs.append(Rung(what, answer.value, run.seconds))

    def _finding(
        self,
        component: str | None,
        part: str | None,
        detail: str,
        *,
        pinned: bool = True,
        flags: tuple[str, ...] = (),
    ) -> ProgramFinding:
        triage = Triage(
            component=component,
            part=part,
            detail=detail,
            pinned=pinned,
            flags=flags,
            rungs=tuple(self.rungs),
            trials=len(self.rungs),
            seconds=round(sum(rung.seconds for rung in self.rungs), 2),
        )
        return ProgramFinding(triage, str(self.first.cases[0]["id"]) if self.first.cases else None)


def cached_code() -> str:
    """That what is compiled anew passes, in words: `cached_code()`."""
    return f"it fails with the compiled code that lies in {compile_cache()}, and passes with an empty compile cache"
