"""Who is at fault in a whole program: it is run with less of the compiler, an empty compile cache, other settings.

The least of the compiler that fails names the component; where only all of it does, settings may tell which part of the
backend. A run that passes is a verified workaround at once. What counts as failing depends on what is known of the
failure: that the program ended badly (`EndsAsBadly`), that a failure of it was recorded though no graph of it fails by
itself (`FailsAs`), or that a script says so (`ScriptReproduces`).
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from torchsleuth.core.cases.answer import Answer
from torchsleuth.core.cases.flags import PRECISION_CASTS, RANDOM, Flag, config_of
from torchsleuth.core.cases.folder import CaseFolder
from torchsleuth.core.cases.model import Case, Rung, Triage, Workaround
from torchsleuth.front.supervise.program_runs import (
    Program,
    ProgramRun,
    Say,
    Watch,
    compile_cache,
    run_program,
    watch_for,
)
from torchsleuth.script_runtime.signature import fails_the_same_way
from torchsleuth.watched.overrides import Overrides

DECOMPOSED = "sleuth_aot_eager_decomp_partition"
MISMATCH = re.compile(r"(?:FakeMismatch|SchemaMismatch): .+")
# Failures that no setting about numbers can be the cause of.
NOT_NUMBERS = ("compile_error", "crash", "hang", "capture_error", "runtime_error")
# A run is not begun with less than this left.
LEAST_SECONDS = 15.0
AT_TIMES = "with nothing changed it did not fail again: it fails at times"
TIME_UP = "the time was up before that was known (--budget)"
_DYNAMIC = "torch.compile(model, dynamic=False)  # and without mark_dynamic"


# -- the ways to run a program


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


_AS_IT_IS = Variant("the program as it is", "inductor")
ANEW = Variant("the program as it is, with an empty compile cache", "inductor", "compile cache")
AS_IT_WAS = Variant("the program as it is, with its compile cache", "inductor")
STATIC = Variant("full, with fixed sizes", "inductor", "dynamic shapes", Overrides(dynamic=False))
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


# -- what counts as the same failure


class Criterion(Protocol):
    """What a run of the program says about the failure, and how it has to be watched for that."""

    @property
    def watch(self) -> Watch | None: ...

    # Whether a run that fails differently shows that what it compiled with is at fault.
    @property
    def other_counts(self) -> bool: ...

    def answer(self, run: ProgramRun) -> Answer: ...


@dataclass(frozen=True)
class EndsAsBadly:
    """The program ends as it did at first: both not in time, or with one status and type of error.

    >>> EndsAsBadly(ProgramRun(1, 2.0, tail="ValueError: a")).answer(ProgramRun(1, 3.0, tail="ValueError: b"))
    <Answer.FAILS: 'fails'>
    """

    first: ProgramRun
    watch: Watch | None = None
    other_counts: bool = False

    def answer(self, run: ProgramRun) -> Answer:
        if run.healthy:
            return Answer.PASSES
        if self.first.timed_out or run.timed_out:
            alike = self.first.timed_out and run.timed_out
        else:
            alike = self.first.status == run.status and self.first.last_word == run.last_word
        return Answer.FAILS if alike else Answer.OTHER


@dataclass(frozen=True)
class FailsAs:
    """A watched run of the program reports a failure like that of a case.

    >>> FailsAs(case).answer(ProgramRun(0, 2.0))
    <Answer.PASSES: 'passes'>
    """

    case: Case
    other_counts: bool = True

    @property
    def watch(self) -> Watch:
        return watch_for(self.case)

    def answer(self, run: ProgramRun) -> Answer:
        if run.timed_out:
            return Answer.CANNOT_TELL
        if any(fails_the_same_way(self.case.signature, seen) for seen in run.signatures):
            return Answer.FAILS
        return Answer.PASSES if run.healthy and not run.signatures else Answer.OTHER


@dataclass(frozen=True)
class ScriptReproduces:
    """A script of ours, run as a program, ends with the status for that."""

    watch: Watch | None = None
    other_counts: bool = False

    def answer(self, run: ProgramRun) -> Answer:
        return {1: Answer.FAILS, 0: Answer.PASSES}.get(run.status, Answer.OTHER)


# -- asking


@dataclass(frozen=True)
class KnownRuns:
    """Watched runs of a program, each way made once: several of its cases may ask for the same."""

    runs: dict[tuple[object, ...], ProgramRun] = field(default_factory=dict)


@dataclass
class ProgramQuestions:
    """What is asked of one program by one criterion, and the answers so far.

    `timeout` is how long one run may take, `deadline` when all have to have ended; one that cannot be begun any more
    is not answered.
    """

    program: Program
    criterion: Criterion
    say: Say
    deadline: float | None = None
    timeout: float | None = None
    known: KnownRuns = field(default_factory=KnownRuns)
    rungs: list[Rung] = field(default_factory=list)
    passed: list[Variant] = field(default_factory=list)

    def ask(self, variant: Variant) -> Answer:
        """Does the program still fail when it is run in this way?"""
        run = self.run(variant)
        return Answer.CANNOT_TELL if run is None else self.criterion.answer(run)

    def run(self, variant: Variant) -> ProgramRun | None:
        """The run that answers; None where there is no time for it."""
        seconds = self.timeout
        if self.deadline is not None:
            seconds = self.deadline - time.monotonic()
            if seconds < LEAST_SECONDS:
                return None
        self.say(f"trying: {variant.what}")
        own_cache, watch = variant is AS_IT_WAS, self.criterion.watch
        changed = variant.overrides.over(self.program.overrides).to_json()
        key = (self.program, json.dumps(changed, sort_keys=True), watch, own_cache)
        run = self.known.runs.get(key) if watch is not None else None
        if run is None:
            run = run_program(
                self.program, variant.overrides, watch=watch, timeout=seconds, own_cache=own_cache
            )
            if watch is not None and not run.timed_out:  # another case may have more time
                self.known.runs[key] = run
        self.note(variant, run)
        return run

    def note(self, variant: Variant, run: ProgramRun) -> None:
        """Keeps the answer of a run, and says it."""
        answer = self.criterion.answer(run)
        how = "" if run.healthy else ", not in time" if run.timed_out else f", status {run.status}"
        self.say(f"{variant.what}: {answer.value}{how} ({run.seconds:.0f} s)")
        self.rungs.append(Rung(variant.what, answer.value, run.seconds))
        if answer is Answer.PASSES:
            self.passed.append(variant)

    def passes_uncompiled(self) -> bool:
        """Whether the program ends well with nothing compiled, as far as that is not known without running it."""
        criterion = self.criterion
        if not isinstance(criterion, FailsAs) or criterion.case.kind == "accuracy":
            return (
                True  # was asked first; numbers are wrong against what the program does without the compiler
            )
        left = LEAST_SECONDS if self.deadline is None else self.deadline - time.monotonic()
        if left < LEAST_SECONDS:
            return True
        run = run_program(self.program, UNCOMPILED.overrides, timeout=left)
        self.rungs.append(Rung(UNCOMPILED.what, "passes" if run.healthy else "fails", run.seconds))
        return run.healthy

    def blame(
        self,
        component: str | None,
        part: str | None,
        detail: str,
        flags: Sequence[Flag] = (),
    ) -> Triage:
        """Who is at fault, with all runs that show it."""
        return Triage(
            component=component,
            part=part,
            detail=detail,
            pinned=component is not None,
            flags=tuple(flag.line for flag in flags),
            rungs=tuple(self.rungs),
            trials=len(self.rungs),
            seconds=round(sum(rung.seconds for rung in self.rungs), 2),
        )


# -- the ladder


def _climb(
    questions: ProgramQuestions, backend: str, settings: Sequence[Variant], checks_fakes: bool
) -> Triage:
    """The least of the compiler that fails; where only all of it does, what of `settings` makes the program pass.

    `backend` is the one that the program compiles with; with `checks_fakes` a fake kernel may be what is wrong.
    """
    ask, blame = questions.ask, questions.blame
    # Each of these holds the ones before it: where the last passes, the others need not be run.
    last = ask(BEFORE_INDUCTOR)
    for variant in (CAPTURED, DIFFERENTIATED, BEFORE_INDUCTOR) if last is not Answer.PASSES else ():
        answer = last if variant is BEFORE_INDUCTOR else ask(variant)
        if answer is Answer.CANNOT_TELL:
            return blame(None, None, TIME_UP)
        if answer is Answer.PASSES or (answer is Answer.OTHER and not questions.criterion.other_counts):
            continue
        if variant is CAPTURED and not questions.passes_uncompiled():
            return blame("program", None, "it fails when nothing is compiled, too")
        # What is watched is compared with eager graph by graph: random numbers are no reason there.
        by_end = questions.criterion.watch is None
        if variant is BEFORE_INDUCTOR and by_end and ask(SAME_NUMBERS) is Answer.PASSES:
            return _cured(questions, SAME_NUMBERS)
        detail = f"it fails with this much of the compiler already: {variant.what}"
        return blame(variant.component, variant.part, detail)
    # An operator whose fake kernel says something else than the real one shows only when it runs.
    if checks_fakes and (run := questions.run(CHECKED)) and (found := MISMATCH.search(run.tail)):
        return blame(CHECKED.component, CHECKED.part, found[0][:300])
    if backend not in ("inductor", "none"):
        return blame("backend", backend, f"only the backend {backend} fails")
    for variant in settings:
        if ask(variant) is Answer.PASSES:
            return _not_anew(questions) if variant is ANEW else _cured(questions, variant)
    return blame("inductor", None, "it fails only with the full compiler")


def _cured(questions: ProgramQuestions, variant: Variant) -> Triage:
    lines = " and ".join(flag.line for flag in variant.flags) or "dynamic=False"
    return questions.blame(variant.component, variant.part, f"it passes with {lines}", variant.flags)


def _not_anew(questions: ProgramQuestions) -> Triage:
    """It passes once the compile cache is empty: what lies there is wrong, or it fails only at times."""
    answer = questions.ask(AS_IT_WAS)
    if answer is Answer.FAILS:
        why = f"it fails with the compiled code that lies in {compile_cache()}, and passes with an empty compile cache"
        return questions.blame(ANEW.component, ANEW.part, why)
    questions.passed.clear()  # that it passes says nothing
    return questions.blame(None, None, TIME_UP if answer is Answer.CANNOT_TELL else AT_TIMES)


# -- the three who climb it


@dataclass(frozen=True)
class ProgramBlame:
    """Who is at fault in a program, with no component where that is not known; `case` is that of its first failure.

    `workarounds` are those with which the whole program was seen to pass.
    """

    triage: Triage
    case: str | None = None
    workarounds: tuple[Workaround, ...] = ()


def component_of_program(
    argv: Sequence[str],
    *,
    cases_dir: Path | None = None,
    say: Say = lambda text: None,
    timeout: float | None = None,
) -> ProgramBlame:
    """Which component makes a program fail: a script with its arguments, or a whole command.

    `timeout` is how long one run may take; a run that takes longer counts as one that hangs. What
    `component_of_program(["train.py", "--epochs", "1"]).triage.component` says is, for one, "decompositions".
    """
    program = program_named(argv)
    say(f"trying: {_AS_IT_IS.what}")
    first = run_program(program, Overrides(), watch=Watch(), timeout=timeout, cases_dir=cases_dir)
    triage = component_by_runs(program, first, None, say, timeout, own_cache=False)
    return ProgramBlame(triage, str(first.cases[0]["id"]) if first.cases else None)


def component_by_runs(
    program: Program,
    first: ProgramRun,
    uncompiled: ProgramRun | None,
    say: Say,
    timeout: float | None,
    *,
    own_cache: bool = True,
) -> Triage:
    """Which component makes a program end as badly as `first`, and with nothing compiled as `uncompiled` where known.

    `own_cache` says that the first run could answer from what was compiled before. Used as
    `component_by_runs(program, ProgramRun(1, 9.0, tail="TypeError: no"), ProgramRun(0, 8.0), print, 60)`.
    """
    criterion = EndsAsBadly(first)
    questions = ProgramQuestions(program, criterion, say, timeout=timeout)
    questions.note(_AS_IT_IS, first)
    if first.healthy:
        return questions.blame(None, None, "the program does not fail")
    if uncompiled is not None:
        questions.note(UNCOMPILED, uncompiled)
        own = criterion.answer(uncompiled)
    else:
        own = questions.ask(UNCOMPILED)
    if own is Answer.FAILS:
        return questions.blame("program", None, "it fails the same way when nothing is compiled")
    numbers = not first.timed_out and not any(case.get("kind") in NOT_NUMBERS for case in first.cases)
    return _climb(
        questions,
        str(first.cases[0].get("backend")) if first.cases else "inductor",
        ((ANEW,) if own_cache else ()) + (SETTINGS if numbers else ()),
        checks_fakes=all(case.get("phase") == "run" for case in first.cases),
    )


def ask_program(case: Case, program: Program, deadline: float, say: Say, known: KnownRuns) -> ProgramBlame:
    """Runs the program of a case, no graph of which fails by itself, until it is known who is at fault.

    `known` are the runs made for other cases of the program. Used as
    `ask_program(case, program_of(folder), time.monotonic() + 300, print, KnownRuns()).triage.component`.
    """
    questions = ProgramQuestions(program, FailsAs(case), say, deadline, known=known)
    found = _climb(questions, case.backend, (ANEW, STATIC, *SETTINGS), checks_fakes=False)
    triage = replace(
        found,
        detail=f"{found.detail}; the program was run, since no graph of it fails by itself",
        pinned=found.component is not None and (found.component != "inductor" or found.part is not None),
    )
    return ProgramBlame(triage, case.id, tuple(_workaround(each) for each in reversed(questions.passed)))


def blame_call(folder: CaseFolder, script: str, python: str, deadline: float, say: Say) -> Triage | None:
    """Which part of the compiler makes a call differ from eager that Dynamo captures rightly; None where that is known.

    Every graph of such a call agrees with eager in its numbers, so its `script` is run with less of the compiler:
    `blame_call(folder, "original.py", sys.executable, time.monotonic() + 60, print).component`.
    """
    known = folder.case.triage
    if folder.case.phase != "run" or known is None or known.component != "inductor":
        return None
    program = Program((python, str(folder.file(script))), str(folder.path))
    questions = ProgramQuestions(program, ScriptReproduces(), say, deadline)
    component = "inductor"
    # The second is less of the compiler than the first: where that passes, so does this.
    for variant in (BEFORE_INDUCTOR, DIFFERENTIATED):
        answer = questions.ask(variant)
        if answer is Answer.CANNOT_TELL:
            return None
        if answer is not Answer.FAILS:
            break
        component = variant.component
    found = questions.blame(component, known.part, known.detail or "")
    return replace(
        known,
        component=component,
        labels=("oncall: pt2", f"module: {component}"),
        rungs=found.rungs,
        trials=found.trials,
        seconds=found.seconds,
    )


def program_named(argv: Sequence[str]) -> Program:
    """The command for a script: `program_named(["train.py"])`; any other command as it is."""
    words = list(argv)
    return Program((sys.executable, *words) if words[0].endswith(".py") else tuple(words))


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
