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

from torchsleuth.core.cases.answer import Answer
from torchsleuth.core.cases.flags import PRECISION_CASTS, RANDOM, Flag, config_of
from torchsleuth.core.cases.model import Rung, Triage
from torchsleuth.front.program.runs import Program, ProgramRun, compile_cache, run_program, watch_program
from torchsleuth.watched.overrides import Overrides

DECOMPOSED = "sleuth_aot_eager_decomp_partition"
MISMATCH = re.compile(r"(?:FakeMismatch|SchemaMismatch): .+")
# Failures that no setting about numbers can be the cause of.
NOT_NUMBERS = ("compile_error", "crash", "hang", "capture_error", "runtime_error")


@dataclass(frozen=True)
class Variant:
    """One way to run the program, and what it means where it fails or, of a setting, where it passes."""

    what: str
    component: str
    part: str | None = None
    overrides: Overrides = field(default_factory=Overrides)
    flags: tuple[Flag, ...] = ()


UNCOMPILED = Variant("nothing compiled", "program", None, Overrides(uncompiled=True))
CAPTURED = Variant(
    "captured by Dynamo and run as it is", "dynamo", "capture", Overrides(backend="sleuth_eager")
)
DIFFERENTIATED = Variant(
    "AOTAutograd with eager kernels", "aot_autograd", None, Overrides(backend="sleuth_aot_eager")
)
BEFORE_INDUCTOR = Variant(
    "AOTAutograd, decompositions and partitioner, with eager kernels",
    "decompositions",
    None,
    Overrides(backend=DECOMPOSED),
)
# Inductor's decompositions draw random numbers of their own.
SAME_NUMBERS = Variant(
    "the same, with eager's random numbers",
    "inductor",
    "random numbers",
    Overrides(backend=DECOMPOSED, config=config_of([RANDOM])),
    (RANDOM,),
)
CHECKED = Variant(
    "the same, fake kernels checked",
    "aot_autograd",
    "fake kernel",
    Overrides(backend=f"{DECOMPOSED}_crossref"),
)


def _of(what: str, part: str, *flags: Flag) -> Variant:
    return Variant(what, "inductor", part, Overrides(config=config_of(flags)), flags)


ANEW = Variant("the program as it is, with an empty compile cache", "inductor", "compile cache")
AS_IT_WAS = Variant("the program as it is, with its compile cache", "inductor")
AT_TIMES = "with nothing changed it did not fail again: it fails at times"
SETTINGS = (
    _of("full, with eager's random numbers", "random numbers", RANDOM),
    _of("full, with precision casts emulated", "precision casts", PRECISION_CASTS),
    _of(
        "full, without fusion",
        "fusion",
        Flag("max_fusion_size", "1", "fusion of kernels"),
        Flag("epilogue_fusion", "False", "fusion into matrix products"),
    ),
    _of("full, deterministic", "determinism", Flag("deterministic", "True", "choices by measurement")),
)


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
    first = watch_program(program, Overrides(), timeout=timeout, cases_dir=cases_dir)
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
        last = self._answer(BEFORE_INDUCTOR)
        below = self._below(last) if last is not Answer.PASSES else None
        return below or self._mismatch() or self._full()

    def _below(self, last: Answer) -> ProgramFinding | None:
        """The first step before Inductor that fails."""
        for variant in (CAPTURED, DIFFERENTIATED, BEFORE_INDUCTOR):
            if (last if variant is BEFORE_INDUCTOR else self._answer(variant)) is not Answer.FAILS:
                continue
            if variant is BEFORE_INDUCTOR and self._answer(SAME_NUMBERS) is Answer.PASSES:
                return self._cured(SAME_NUMBERS)
            detail = f"it fails with this much of the compiler already: {variant.what}"
            return self._finding(variant.component, variant.part, detail)
        return None

    def _cured(self, variant: Variant) -> ProgramFinding:
        lines = tuple(flag.line for flag in variant.flags)
        detail = f"it passes with {' and '.join(lines)}"
        return self._finding(variant.component, variant.part, detail, flags=lines)

    def _mismatch(self) -> ProgramFinding | None:
        """An operator whose fake kernel says something else than the real one; that shows only when it runs."""
        if any(case.get("phase") != "run" for case in self.first.cases):
            return None
        found = MISMATCH.search(self._run(CHECKED).tail)
        return self._finding(CHECKED.component, CHECKED.part, found[0][:300]) if found else None

    def _full(self) -> ProgramFinding:
        """The full backend is at fault; for wrong numbers, settings may say which part of it."""
        cases = self.first.cases
        backend = str(cases[0].get("backend")) if cases else "inductor"
        if backend not in ("inductor", "none"):
            return self._finding("backend", backend, f"only the backend {backend} fails")
        if self.own_cache and self._answer(ANEW) is Answer.PASSES:
            return self._not_anew()
        if self.first.timed_out or any(case.get("kind") in NOT_NUMBERS for case in cases):
            return self._finding("inductor", None, "it fails only with the full compiler")
        for variant in SETTINGS:
            if self._answer(variant) is Answer.PASSES:
                return self._cured(variant)
        return self._finding("inductor", None, "it fails only with the full compiler, whatever the settings")

    def _not_anew(self) -> ProgramFinding:
        """It passes once the compile cache is empty: what lies there is wrong, or it fails only at times."""
        if self._answer(AS_IT_WAS) is Answer.FAILS:
            return self._finding(ANEW.component, ANEW.part, cached_code())
        return self._finding(None, None, AT_TIMES, pinned=False)

    def _answer(self, variant: Variant) -> Answer:
        return answer_of_run(self.first, self._run(variant))

    def _run(self, variant: Variant) -> ProgramRun:
        self.say(f"trying: {variant.what}")
        own_cache = variant is AS_IT_WAS
        run = run_program(self.program, variant.overrides, timeout=self.timeout, own_cache=own_cache)
        self._note(variant.what, run)
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


def answer_of_run(first: ProgramRun, run: ProgramRun) -> Answer:
    """What a run says about how the program ended at first: both not in time, or with one status and type of error.

    >>> answer_of_run(ProgramRun(1, 2.0, tail="ValueError: a"), ProgramRun(1, 3.0, tail="ValueError: b"))
    <Answer.FAILS: 'fails'>
    """
    if run.healthy:
        return Answer.PASSES
    if first.timed_out or run.timed_out:
        alike = first.timed_out and run.timed_out
    else:
        alike = first.status == run.status and first.last_word == run.last_word
    return Answer.FAILS if alike else Answer.OTHER
