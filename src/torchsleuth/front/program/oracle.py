"""The program itself as the oracle, for a failure that no graph shows by itself: who is at fault, and what helps.

It is run under watch with less of the compiler, then as it is with an empty compile cache, then with other settings; a
run that passes names the component and is a verified workaround at once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torchsleuth.core.cases.folder import CaseFolder
from torchsleuth.core.cases.model import Case, Rung, Triage, Workaround
from torchsleuth.core.change_table import (
    CAPTURED,
    DECOMPOSED,
    EMPTY_CACHE,
    OWN_CACHE,
    RUNGS,
    SETTINGS,
    STATIC,
    UNCOMPILED,
    first_that_passes,
    least_that_fails,
)
from torchsleuth.core.changes import Change
from torchsleuth.core.criteria import Answer, answer_of_watched_run
from torchsleuth.front.program.component import AT_TIMES, cached_code
from torchsleuth.front.program.runs import (
    Program,
    ProgramRun,
    compile_cache,
    program_of,
    run_program,
    watch_program,
)
from torchsleuth.front.program.workarounds import watch_options

# A run is not begun with less than this left.
LEAST_SECONDS = 15.0
NOT_PASSED = (Answer.FAILS, Answer.OTHER, Answer.CANNOT_TELL)


@dataclass(frozen=True)
class WatchedRuns:
    """Watched runs of a program, each way made once: several of its cases may ask for the same."""

    known: dict[tuple[object, ...], ProgramRun] = field(default_factory=dict)

    def run(
        self, program: Program, change: Change, options: Sequence[str], timeout: float
    ) -> tuple[ProgramRun, bool]:
        """The run, and whether it was made before: `runs.run(program, STATIC, ["--check-accuracy"], 60)`."""
        key = (program, json.dumps(change.to_json(), sort_keys=True), tuple(options))
        if key in self.known:
            return self.known[key], True
        run = watch_program(program, change, options=options, timeout=timeout)
        if not run.timed_out:  # another case may have more time
            self.known[key] = run
        return run, False


@dataclass(frozen=True)
class ProgramAnswer:
    """Who is at fault in the program of a case, and the workarounds with which the whole program passes."""

    triage: Triage
    workarounds: tuple[Workaround, ...]


def ask_program(
    folder: CaseFolder,
    deadline: float,
    say: Callable[[str], None] = lambda text: None,
    runs: WatchedRuns | None = None,
) -> ProgramAnswer:
    """Runs the program of a case until it is known who is at fault, or the time is up.

    `runs` are those that were made for other cases of the program. Raises `CannotRunProgram` where it cannot be run;
    `ask_program(folder, time.monotonic() + 300).triage.component`.
    """
    return _Runs(folder.case, program_of(folder), deadline, say, runs or WatchedRuns()).finding()


@dataclass
class _Runs:
    """The runs made so far, and what each said."""

    case: Case
    program: Program
    deadline: float
    say: Callable[[str], None]
    runs: WatchedRuns
    rungs: list[Rung] = field(default_factory=list)
    passed: list[Change] = field(default_factory=list)

    def finding(self) -> ProgramAnswer:
        # Each of these holds the ones before it: where the last passes, the others need not be run.
        last = self._answer(DECOMPOSED)
        if last is Answer.PASSES:
            return self._in_backend()
        found = least_that_fails(
            RUNGS, lambda rung: last if rung is DECOMPOSED else self._answer(rung), NOT_PASSED
        )
        if found is None:
            return self._in_backend()
        rung, answer = found
        if answer is Answer.CANNOT_TELL:
            return self._told(None, None, "the time was up before that was known (--budget)")
        if rung is CAPTURED and not self._passes_uncompiled():
            return self._told("program", None, "it fails when nothing is compiled, too")
        return self._told(rung.component, rung.part, f"it fails already with: {rung.what}")

    def _in_backend(self) -> ProgramAnswer:
        """Only the whole compiler fails; a setting may say which part of it."""
        if self.case.backend not in ("inductor", "none"):
            return self._told("backend", self.case.backend, f"only the backend {self.case.backend} fails")
        if self._answer(EMPTY_CACHE) is Answer.PASSES:
            return self._not_anew()
        cure = first_that_passes((STATIC, *SETTINGS), self._answer)
        if cure is not None:
            lines = cure.how.splitlines() if cure.config else []
            said = " and ".join(lines) or cure.name
            return self._told("inductor", cure.part, f"it passes with {said}", lines)
        return self._told("inductor", None, "it fails with the full compiler only")

    def _not_anew(self) -> ProgramAnswer:
        """It passes once the compile cache is empty: what lies there is wrong, or it fails only at times."""
        answer = self._answer(OWN_CACHE)
        if answer is Answer.FAILS:
            return self._told(EMPTY_CACHE.component, EMPTY_CACHE.part, cached_code())
        self.passed.clear()  # that it passes says nothing
        if answer is Answer.CANNOT_TELL:
            return self._told(None, None, "the time was up before that was known (--budget)")
        return self._told(None, None, AT_TIMES)

    def _answer(self, change: Change) -> Answer:
        left = self.deadline - time.monotonic()
        if left < LEAST_SECONDS:
            return Answer.CANNOT_TELL
        self.say(f"running the program: {change.what}")
        run, known = self.runs.run(self.program, change, watch_options(self.case), left)
        answer = answer_of_watched_run(self.case.signature, run)
        how_long = "as was seen before" if known else f"{run.seconds:.0f} s"
        self.say(f"{change.what}: {answer.value} ({how_long})")
        self.rungs.append(Rung(change.what, answer.value, run.seconds))
        if answer is Answer.PASSES:
            self.passed.append(change)
        return answer

    def _passes_uncompiled(self) -> bool:
        left = self.deadline - time.monotonic()
        if self.case.kind == "accuracy" or left < LEAST_SECONDS:
            return True  # numbers are wrong against what the program does without the compiler
        run = run_program(self.program, UNCOMPILED, timeout=left)
        self.rungs.append(Rung(UNCOMPILED.what, "passes" if run.healthy else "fails", run.seconds))
        return run.healthy

    def _told(
        self, component: str | None, part: str | None, why: str, flags: list[str] | None = None
    ) -> ProgramAnswer:
        triage = Triage(
            component=component,
            part=part,
            detail=f"{why}; the program was run, since no graph of it fails by itself",
            pinned=(component is not None and component != "inductor") or part is not None,
            flags=tuple(flags or ()),
            rungs=tuple(self.rungs),
            trials=len(self.rungs),
            seconds=round(sum(rung.seconds for rung in self.rungs), 2),
        )
        return ProgramAnswer(triage, tuple(_workaround(change) for change in reversed(self.passed)))


def _workaround(change: Change) -> Workaround:
    """What the program passed with, as a person pastes it."""
    if change is EMPTY_CACHE:
        how = f'import os\nos.environ["TORCHINDUCTOR_CACHE_DIR"] = {f"{compile_cache()}-new"!r}'
        means = "what was compiled before; or remove that folder"
        return Workaround("an empty compile cache", how, True, disables=means, program=True)
    return Workaround(change.name, change.how, True, disables=change.disables, program=True)
