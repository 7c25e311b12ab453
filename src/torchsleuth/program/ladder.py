"""The ladder for a whole program: run again and again, unchanged, with less of the compiler or another setting.

A rung fails where the program ends as badly as it did at first: with a status, by a signal, or not in time. The first
rung that fails names the component; where none does it is the full backend, and settings may tell which part of it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchsleuth.cases.model import Rung, Triage
from torchsleuth.program.runs import Program, ProgramRun, run_program, watch_program
from torchsleuth.triage.ladder import AOT, CROSSREF, DECOMPOSED, EAGER
from torchsleuth.triage.settings import CAUTIOUS, Flag, config_of
from torchsleuth.watched.overrides import Overrides
from torchsleuth.workaround.candidates import RANDOM

MISMATCH = re.compile(r"(?:FakeMismatch|SchemaMismatch): .+")
NOTHING_COMPILED = {"TORCH_COMPILE_DISABLE": "1"}
# Failures that no setting about numbers can be the cause of.
NOT_NUMBERS = ("compile_error", "crash", "hang", "capture_error", "runtime_error")


@dataclass(frozen=True)
class Step:
    """One run of the ladder, and what it means: where it fails, or, of a setting, where it passes."""

    what: str
    component: str
    part: str | None = None
    overrides: Overrides = field(default_factory=Overrides)
    flags: tuple[Flag, ...] = ()


UNCOMPILED = Step("nothing compiled", "program")
CAPTURED = Step("captured by Dynamo and run as it is", "dynamo", "capture", Overrides(backend=EAGER))
DIFFERENTIATED = Step("AOTAutograd with eager kernels", "aot_autograd", None, Overrides(backend=AOT))
BEFORE_INDUCTOR = Step(
    "AOTAutograd, decompositions and partitioner, with eager kernels",
    "decompositions",
    None,
    Overrides(backend=DECOMPOSED),
)
# Inductor's decompositions draw random numbers of their own.
SAME_NUMBERS = Step(
    "the same, with eager's random numbers",
    "inductor",
    "random numbers",
    Overrides(backend=DECOMPOSED, config=config_of([RANDOM])),
    (RANDOM,),
)
CHECKED = Step("the same, fake kernels checked", "aot_autograd", "fake kernel", Overrides(backend=CROSSREF))


def _of(what: str, part: str, *flags: Flag) -> Step:
    return Step(what, "inductor", part, Overrides(config=config_of(flags)), flags)


SETTINGS = (
    _of("full, with eager's random numbers", "random numbers", RANDOM),
    _of("full, with precision casts emulated", "precision casts", CAUTIOUS[0]),
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
    """Who is at fault in a program. `component` is None where it does not fail; `case` is that of its first failure."""

    component: str | None
    part: str | None = None
    detail: str = ""
    pinned: bool = False
    flags: tuple[str, ...] = ()
    rungs: tuple[Rung, ...] = ()
    case: str | None = None
    backend: str | None = None

    def as_triage(self, seconds: float | None = None) -> Triage:
        """The finding as a section of case.json, from which labels are made."""
        return Triage(
            component=self.component,
            part=self.part,
            detail=self.detail,
            pinned=self.pinned,
            flags=self.flags,
            rungs=self.rungs,
            trials=len(self.rungs),
            seconds=seconds,
        )


def program_ladder(
    argv: Sequence[str],
    *,
    cases_dir: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
    timeout: float | None = None,
) -> ProgramFinding:
    """Which component makes a program fail: a script with its arguments, or a whole command.

    `timeout` is how long one run may take; a run that takes longer counts as one that hangs.

    >>> program_ladder(["train.py", "--epochs", "1"]).component
    'decompositions'
    """
    return _Ladder(program_named(argv), say, timeout).climb(cases_dir)


def program_named(argv: Sequence[str]) -> Program:
    """The command for a script: `program_named(["train.py"])`; any other command as it is."""
    words = list(argv)
    return Program((sys.executable, *words) if words[0].endswith(".py") else tuple(words))


class _Ladder:
    """One climb: the program, and what its runs said so far."""

    def __init__(self, program: Program, say: Callable[[str], None], timeout: float | None) -> None:
        self.program = program
        self.say = say
        self.timeout = timeout
        self.rungs: list[Rung] = []
        self.tail = ""

    def climb(self, cases_dir: Path | None) -> ProgramFinding:
        self.say("trying: the program as it is")
        first = watch_program(self.program, Overrides(), timeout=self.timeout, cases_dir=cases_dir)
        self._note("the program as it is", first, "passes" if first.healthy else "fails")
        if first.healthy:
            return self._finding(first, None, None, "the program does not fail")
        if self._answer(first, UNCOMPILED, **NOTHING_COMPILED) == "fails":
            return self._finding(
                first, "program", None, "it fails the same way when nothing is compiled", pinned=True
            )
        # Each step holds the ones before it: where the last passes, the others need not be run.
        last = self._answer(first, BEFORE_INDUCTOR)
        below = self._below(first, last) if last != "passes" else None
        return below or self._mismatch(first) or self._full(first)

    def _below(self, first: ProgramRun, last: str) -> ProgramFinding | None:
        """The first step before Inductor that fails."""
        for step in (CAPTURED, DIFFERENTIATED, BEFORE_INDUCTOR):
            if (last if step is BEFORE_INDUCTOR else self._answer(first, step)) != "fails":
                continue
            if step is BEFORE_INDUCTOR and self._answer(first, SAME_NUMBERS) == "passes":
                return self._cured(first, SAME_NUMBERS)
            detail = f"it fails with this much of the compiler already: {step.what}"
            return self._finding(first, step.component, step.part, detail, pinned=True)
        return None

    def _cured(self, first: ProgramRun, step: Step) -> ProgramFinding:
        lines = tuple(flag.line for flag in step.flags)
        detail = f"it passes with {' and '.join(lines)}"
        return self._finding(first, step.component, step.part, detail, pinned=True, flags=lines)

    def _mismatch(self, first: ProgramRun) -> ProgramFinding | None:
        """An operator whose fake kernel says something else than the real one; that shows only when it runs."""
        if any(case.get("phase") != "run" for case in first.cases):
            return None
        self._answer(first, CHECKED)
        found = MISMATCH.search(self.tail)
        if found is None:
            return None
        return self._finding(first, CHECKED.component, CHECKED.part, found[0][:300], pinned=True)

    def _full(self, first: ProgramRun) -> ProgramFinding:
        """The full backend is at fault; for wrong numbers, settings may say which part of it."""
        backend = str(first.cases[0].get("backend")) if first.cases else "inductor"
        if backend not in ("inductor", "none"):
            return self._finding(first, "backend", backend, f"only the backend {backend} fails", pinned=True)
        kinds = {str(case.get("kind")) for case in first.cases}
        if kinds & set(NOT_NUMBERS) or first.timed_out:
            return self._finding(first, "inductor", None, "it fails only with the full compiler", pinned=True)
        for step in SETTINGS:
            if self._answer(first, step) == "passes":
                return self._cured(first, step)
        return self._finding(
            first,
            "inductor",
            None,
            "it fails only with the full compiler, whatever the settings",
            pinned=True,
        )

    def _answer(self, first: ProgramRun, step: Step, **environment: str) -> str:
        self.say(f"trying: {step.what}")
        run = run_program(self.program, step.overrides, timeout=self.timeout, **environment)
        answer = "passes" if run.healthy else "fails" if ends_alike(first, run) else "fails differently"
        self.tail = run.tail
        self._note(step.what, run, answer)
        return answer

    def _note(self, what: str, run: ProgramRun, answer: str) -> None:
        how = "" if run.healthy else ", not in time" if run.timed_out else f", status {run.status}"
        self.say(f"{what}: {answer}{how} ({run.seconds:.0f} s)")
        self.rungs.append(Rung(what, answer, run.seconds))

    def _finding(
        self,
        first: ProgramRun,
        component: str | None,
        part: str | None,
        detail: str,
        *,
        pinned: bool = False,
        flags: tuple[str, ...] = (),
    ) -> ProgramFinding:
        case = str(first.cases[0]["id"]) if first.cases else None
        backend = str(first.cases[0].get("backend")) if first.cases else None
        return ProgramFinding(component, part, detail, pinned, flags, tuple(self.rungs), case, backend)


def ends_alike(first: ProgramRun, other: ProgramRun) -> bool:
    """Whether two runs end in the same bad way: both not in time, or with the same status and type of error.

    >>> ends_alike(ProgramRun(1, 2.0, tail="ValueError: a"), ProgramRun(1, 3.0, tail="ValueError: b"))
    True
    """
    if first.timed_out or other.timed_out:
        return first.timed_out and other.timed_out
    return first.status == other.status and first.last_word == other.last_word
