"""The program itself as the oracle, for a failure that no graph shows by itself: who is at fault, and what helps.

It is run under watch with less of the compiler, then as it is with an empty compile cache, then with other settings; a
run that passes names the component and is a verified workaround at once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torchsleuth.core.cases.answer import Answer
from torchsleuth.core.cases.folder import CaseFolder
from torchsleuth.core.cases.model import Case, Rung, Triage, Workaround
from torchsleuth.front.program.component import (
    ANEW,
    AS_IT_WAS,
    AT_TIMES,
    BEFORE_INDUCTOR,
    CAPTURED,
    DIFFERENTIATED,
    SETTINGS,
    UNCOMPILED,
    Variant,
    cached_code,
)
from torchsleuth.front.program.runs import (
    Program,
    ProgramRun,
    compile_cache,
    program_of,
    run_program,
    watch_program,
)
from torchsleuth.front.program.workarounds import watch_options
from torchsleuth.script_runtime.signature import fails_the_same_way
from torchsleuth.watched.overrides import Overrides

STATIC = Variant("full, with fixed sizes", "inductor", "dynamic shapes", Overrides(dynamic=False))
# A run is not begun with less than this left.
LEAST_SECONDS = 15.0
_DYNAMIC = "torch.compile(model, dynamic=False)  # and without mark_dynamic"


@dataclass(frozen=True)
class WatchedRuns:
    """Watched runs of a program, each way made once: several of its cases may ask for the same."""

    known: dict[tuple[object, ...], ProgramRun] = field(default_factory=dict)

    def run(
        self, program: Program, variant: Variant, options: Sequence[str], timeout: float
    ) -> tuple[ProgramRun, bool]:
        """The run, and whether it was made before: `runs.run(program, STATIC, ["--check-accuracy"], 60)`."""
        changed = json.dumps(variant.overrides.to_json(), sort_keys=True)
        key = (program, changed, tuple(options), variant is AS_IT_WAS)
        if key in self.known:
            return self.known[key], True
        run = watch_program(
            program, variant.overrides, options=options, timeout=timeout, own_cache=variant is AS_IT_WAS
        )
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
    passed: list[Variant] = field(default_factory=list)

    def finding(self) -> ProgramAnswer:
        # Each of these holds the ones before it: where the last passes, the others need not be run.
        last = self._answer(BEFORE_INDUCTOR)
        if last is Answer.PASSES:
            return self._in_backend()
        for variant in (CAPTURED, DIFFERENTIATED, BEFORE_INDUCTOR):
            answer = last if variant is BEFORE_INDUCTOR else self._answer(variant)
            if answer is Answer.CANNOT_TELL:
                return self._told(None, None, "the time was up before that was known (--budget)")
            if answer is Answer.PASSES:
                continue
            if variant is CAPTURED and not self._passes_uncompiled():
                return self._told("program", None, "it fails when nothing is compiled, too")
            return self._told(variant.component, variant.part, f"it fails already with: {variant.what}")
        return self._in_backend()

    def _in_backend(self) -> ProgramAnswer:
        """Only the whole compiler fails; a setting may say which part of it."""
        if self.case.backend not in ("inductor", "none"):
            return self._told("backend", self.case.backend, f"only the backend {self.case.backend} fails")
        if self._answer(ANEW) is Answer.PASSES:
            return self._not_anew()
        for variant in (STATIC, *SETTINGS):
            if self._answer(variant) is Answer.PASSES:
                lines = " and ".join(flag.line for flag in variant.flags) or "dynamic=False"
                return self._told(
                    "inductor", variant.part, f"it passes with {lines}", [f.line for f in variant.flags]
                )
        return self._told("inductor", None, "it fails with the full compiler only")

    def _not_anew(self) -> ProgramAnswer:
        """It passes once the compile cache is empty: what lies there is wrong, or it fails only at times."""
        answer = self._answer(AS_IT_WAS)
        if answer is Answer.FAILS:
            return self._told(ANEW.component, ANEW.part, cached_code())
        self.passed.clear()  # that it passes says nothing
        if answer is Answer.CANNOT_TELL:
            return self._told(None, None, "the time was up before that was known (--budget)")
        return self._told(None, None, AT_TIMES)

    def _answer(self, variant: Variant) -> Answer:
        left = self.deadline - time.monotonic()
        if left < LEAST_SECONDS:
            return Answer.CANNOT_TELL
        self.say(f"running the program: {variant.what}")
        run, known = self.runs.run(self.program, variant, watch_options(self.case), left)
        answer = answer_of_watched_run(self.case, run)
        how_long = "as was seen before" if known else f"{run.seconds:.0f} s"
        self.say(f"{variant.what}: {answer.value} ({how_long})")
        self.rungs.append(Rung(variant.what, answer.value, run.seconds))
        if answer is Answer.PASSES:
            self.passed.append(variant)
        return answer

    def _passes_uncompiled(self) -> bool:
        left = self.deadline - time.monotonic()
        if self.case.kind == "accuracy" or left < LEAST_SECONDS:
            return True  # numbers are wrong against what the program does without the compiler
        run = run_program(self.program, UNCOMPILED.overrides, timeout=left)
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
        return ProgramAnswer(triage, tuple(_workaround(variant) for variant in reversed(self.passed)))


def answer_of_watched_run(case: Case, run: ProgramRun) -> Answer:
    """What a watched run of its program says about a case's failure.

    >>> answer_of_watched_run(case, ProgramRun(0, 2.0))
    <Answer.PASSES: 'passes'>
    """
    if run.timed_out:
        return Answer.CANNOT_TELL
    if any(fails_the_same_way(case.signature, seen) for seen in run.signatures):
        return Answer.FAILS
    return Answer.PASSES if run.healthy and not run.signatures else Answer.OTHER


def _workaround(variant: Variant) -> Workaround:
    """A variant with which the program passed, as what a person pastes."""
    backend = variant.overrides.backend
    if variant is ANEW:
        how = f'import os\nos.environ["TORCHINDUCTOR_CACHE_DIR"] = {f"{compile_cache()}-new"!r}'
        means = "what was compiled before; or remove that folder"
        return Workaround("an empty compile cache", how, True, disables=means, program=True)
    if backend is not None:
        name = backend.removeprefix("sleuth_")
        how = f'torch.compile(model, backend="{name}")'
        return Workaround(f"backend {name}", how, True, disables="the rest of the compiler", program=True)
    if variant.overrides.dynamic is False:
        return Workaround("dynamic=False", _DYNAMIC, True, disables="dynamic shapes", program=True)
    how = "\n".join(flag.line for flag in variant.flags)
    means = " and ".join(flag.means for flag in variant.flags)
    names = ", ".join(flag.key for flag in variant.flags)
    return Workaround(f"setting {names}", how, True, disables=means, program=True)
