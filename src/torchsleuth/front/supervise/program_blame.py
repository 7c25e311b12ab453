"""Who is at fault in a whole program: it is run with less of the compiler, an empty compile cache, other settings.

The least of the compiler that fails names the component; where only all of it does, settings may tell which part of the
backend. A run that passes is a verified workaround at once. What counts as failing (`core/criteria.py`) depends on what
is known of the failure: that the program ended badly, that a failure of it was recorded though no graph of it fails by
itself, or that a script says so.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from torchsleuth.core.cases.folder import CaseFolder
from torchsleuth.core.cases.model import Case, Rung, Triage, Workaround
from torchsleuth.core.change_table import (
    AOT,
    CAPTURED,
    DECOMPOSED,
    EMPTY_CACHE,
    FAKE_KERNELS_OF_PROGRAM,
    OWN_CACHE,
    RUNGS,
    SAME_NUMBERS,
    SETTINGS,
    STATIC,
    UNCOMPILED,
    first_that_passes,
    least_that_fails,
)
from torchsleuth.core.changes import NOTHING, Change
from torchsleuth.core.criteria import Answer, answer_of_run, answer_of_script, answer_of_watched_run
from torchsleuth.front.supervise.case_at_work import CaseAtWork
from torchsleuth.front.supervise.program_runs import (
    CannotRunProgram,
    Program,
    ProgramRun,
    Say,
    Watch,
    nobody,
    run_program,
    watch_for,
)

MISMATCH = re.compile(r"(?:FakeMismatch|SchemaMismatch): .+")
# Failures that no setting about numbers can be the cause of.
NOT_NUMBERS = ("compile_error", "crash", "hang", "capture_error", "runtime_error")
# A run is not begun with less than this left.
LEAST_SECONDS = 15.0
AS_IT_IS = replace(NOTHING, what="the program as it is")
AT_TIMES = "with nothing changed it did not fail again: it fails at times"
TIME_UP = "the time was up before that was known (--budget)"


# -- asking


# Watched runs of a program, each way made once: several of its cases may ask for the same.
KnownRuns = dict[tuple[object, ...], ProgramRun]


@dataclass
class ProgramQuestions:
    """Does the program still fail, with this change? Answered by runs, of which all are kept; `answer_of` reads one.

    With `watch` they run under watch. `timeout` is how long one run may take, `deadline` when all have to have ended;
    one that cannot be begun any more is not answered.
    """

    program: Program
    answer_of: Callable[[ProgramRun], Answer]
    say: Say
    watch: Watch | None = None
    deadline: float | None = None
    timeout: float | None = None
    known: KnownRuns = field(default_factory=dict)
    rungs: list[Rung] = field(default_factory=list)
    passed: list[Change] = field(default_factory=list)

    def ask(self, change: Change) -> Answer:
        """The answer of a run with this change."""
        run = self.run(change)
        return Answer.CANNOT_TELL if run is None else self.answer_of(run)

    def run(self, change: Change) -> ProgramRun | None:
        """The run that answers; None where there is no time for it."""
        seconds = self.timeout
        if self.deadline is not None:
            seconds = self.deadline - time.monotonic()
            if seconds < LEAST_SECONDS:
                return None
        self.say(f"trying: {change.what}")
        changed = change.over(self.program.change).to_json()
        key = (self.program.command, self.program.cwd, json.dumps(changed, sort_keys=True), self.watch)
        run = self.known.get(key)
        if run is None:
            run = run_program(self.program, change, watch=self.watch, timeout=seconds)
            if self.watch is not None and not run.timed_out:  # another case may have more time
                self.known[key] = run
        self.note(change, run)
        return run

    def note(self, change: Change, run: ProgramRun) -> None:
        """Keeps the answer of a run, and says it."""
        answer = self.answer_of(run)
        how = "" if run.healthy else ", not in time" if run.timed_out else f", status {run.status}"
        self.say(f"{change.what}: {answer.value}{how} ({run.seconds:.0f} s)")
        self.rungs.append(Rung(change.what, answer.value, run.seconds))
        if answer is Answer.PASSES:
            self.passed.append(change)

    def blame(
        self, component: str | None, part: str | None, detail: str, flags: Sequence[str] = ()
    ) -> Triage:
        """Who is at fault, with all runs that show it."""
        return Triage(
            component=component,
            part=part,
            detail=detail,
            pinned=component is not None,
            flags=tuple(flags),
            rungs=tuple(self.rungs),
            trials=len(self.rungs),
            seconds=round(sum(rung.seconds for rung in self.rungs), 2),
        )


# -- the climb


def compile_cache() -> Path:
    """Where Inductor keeps what it compiled for the programs that are started here.

    >>> compile_cache().name.startswith("torchinductor_") or "TORCHINDUCTOR_CACHE_DIR" in os.environ
    True
    """
    given = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if given:
        return Path(given)
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # in a container the number of a user may have no name
        user = str(os.getuid())
    return Path(tempfile.gettempdir()) / ("torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user))


def _climb(
    questions: ProgramQuestions, backend: str, settings: Sequence[Change], checks_fakes: bool
) -> Triage:
    """The least of the compiler that fails; where only all of it does, what of `settings` makes the program pass.

    `backend` is the one that the program compiles with; with `checks_fakes` a fake kernel may be what is wrong.
    """
    ask, blame, watched = questions.ask, questions.blame, questions.watch is not None
    # Under watch a rung has to bring the program to its end; elsewhere to end in another way is no evidence.
    counts = (Answer.FAILS, Answer.OTHER, Answer.CANNOT_TELL) if watched else (Answer.FAILS,)
    # Each rung holds the ones before it: where the last passes, the others need not be run.
    last = ask(DECOMPOSED)
    rungs = RUNGS if last is not Answer.PASSES else ()
    found = least_that_fails(rungs, lambda rung: last if rung is DECOMPOSED else ask(rung), counts)
    if found is not None:
        rung, answer = found
        if answer is Answer.CANNOT_TELL:
            return blame(None, None, TIME_UP)
        if rung is CAPTURED and watched and not _passes_uncompiled(questions):
            return blame("program", None, "it fails when nothing is compiled, too")
        # What is watched is compared with eager graph by graph: random numbers are no reason there.
        if rung is DECOMPOSED and not watched and ask(SAME_NUMBERS) is Answer.PASSES:
            return _cured(questions, SAME_NUMBERS)
        return blame(
            rung.component, rung.part, f"it fails with this much of the compiler already: {rung.what}"
        )
    # An operator whose fake kernel says something else than the real one shows only when it runs.
    checked = FAKE_KERNELS_OF_PROGRAM
    if checks_fakes and (run := questions.run(checked)) and (said := MISMATCH.search(run.tail)):
        return blame(checked.component, checked.part, said[0][:300])
    if backend not in ("inductor", "none"):
        return blame("backend", backend, f"only the backend {backend} fails")
    cure = first_that_passes(settings, ask)
    if cure is None:
        return blame("inductor", None, "it fails only with the full compiler")
    return _not_anew(questions) if cure is EMPTY_CACHE else _cured(questions, cure)


def _passes_uncompiled(questions: ProgramQuestions) -> bool:
    """Whether a program that fails under watch ends well with nothing compiled, as far as there is time to see that."""
    left = (questions.deadline or 0.0) - time.monotonic()
    if left < LEAST_SECONDS or (questions.watch is not None and questions.watch.compares):
        return True  # numbers are wrong against what the program does without the compiler
    run = run_program(questions.program, UNCOMPILED, timeout=left)
    questions.rungs.append(Rung(UNCOMPILED.what, "passes" if run.healthy else "fails", run.seconds))
    return run.healthy


def _cured(questions: ProgramQuestions, change: Change) -> Triage:
    lines = change.how.splitlines() if change.config else []
    said = " and ".join(lines) or change.name
    return questions.blame(change.component, change.part, f"it passes with {said}", lines)


def _not_anew(questions: ProgramQuestions) -> Triage:
    """It passes once the compile cache is empty: what lies there is wrong, or it fails only at times."""
    answer = questions.ask(OWN_CACHE)
    if answer is Answer.FAILS:
        why = f"it fails with the compiled code that lies in {compile_cache()}, and passes with an empty compile cache"
        return questions.blame(EMPTY_CACHE.component, EMPTY_CACHE.part, why)
    questions.passed.clear()  # that it passes says nothing
    return questions.blame(None, None, TIME_UP if answer is Answer.CANNOT_TELL else AT_TIMES)


# -- the three who climb


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
    say: Say = nobody,
    timeout: float | None = None,
) -> ProgramBlame:
    """Which component makes a program fail: a script with its arguments, or a whole command.

    `timeout` is how long one run may take; a run that takes longer counts as one that hangs. What
    `component_of_program(["train.py", "--epochs", "1"]).triage.component` says is, for one, "decompositions".
    """
    program = program_named(argv)
    say(f"trying: {AS_IT_IS.what}")
    first = run_program(program, AS_IT_IS, watch=Watch(), timeout=timeout, cases_dir=cases_dir)
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
    questions = ProgramQuestions(program, partial(answer_of_run, first), say, timeout=timeout)
    questions.note(AS_IT_IS, first)
    if first.healthy:
        return questions.blame(None, None, "the program does not fail")
    if uncompiled is not None:
        questions.note(UNCOMPILED, uncompiled)
    own = questions.ask(UNCOMPILED) if uncompiled is None else answer_of_run(first, uncompiled)
    if own is Answer.FAILS:
        return questions.blame("program", None, "it fails the same way when nothing is compiled")
    numbers = not first.timed_out and not any(case.get("kind") in NOT_NUMBERS for case in first.cases)
    return _climb(
        questions,
        str(first.cases[0].get("backend")) if first.cases else "inductor",
        ((EMPTY_CACHE,) if own_cache else ()) + (SETTINGS if numbers else ()),
        checks_fakes=all(case.get("phase") == "run" for case in first.cases),
    )


def ask_program(case: Case, program: Program, deadline: float, say: Say, known: KnownRuns) -> ProgramBlame:
    """Runs the program of a case, no graph of which fails by itself, until it is known who is at fault.

    `known` are the runs made for other cases of the program. Used as
    `ask_program(case, program_of(folder), time.monotonic() + 300, print, KnownRuns()).triage.component`.
    """
    answer_of = partial(answer_of_watched_run, case.signature)
    questions = ProgramQuestions(program, answer_of, say, watch_for(case), deadline, known=known)
    found = _climb(questions, case.backend, (EMPTY_CACHE, STATIC, *SETTINGS), checks_fakes=False)
    triage = replace(
        found,
        detail=f"{found.detail}; the program was run, since no graph of it fails by itself",
        pinned=found.component is not None and (found.component != "inductor" or found.part is not None),
    )
    return ProgramBlame(triage, case.id, tuple(_offered(questions)))


def blame_call(folder: CaseFolder, script: str, python: str, deadline: float, say: Say) -> Triage | None:
    """Which part of the compiler makes a call differ from eager that Dynamo captures rightly; None where that is known.

    Every graph of such a call agrees with eager in its numbers, so its `script` is run with less of the compiler:
    `blame_call(folder, "original.py", sys.executable, time.monotonic() + 60, print).component`.
    """
    known = folder.case.triage
    if folder.case.phase != "run" or known is None or known.component != "inductor":
        return None
    program = Program((python, str(folder.file(script))), str(folder.path))
    questions = ProgramQuestions(program, answer_of_script, say, deadline=deadline)
    component = "inductor"
    # The second is less of the compiler than the first: where that passes, so does this.
    for rung in (DECOMPOSED, AOT):
        answer = questions.ask(rung)
        if answer is Answer.CANNOT_TELL:
            return None
        if answer is not Answer.FAILS:
            break
        component = rung.component
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


# A run of the program with nothing compiled has this long at least.
LEAST_UNCOMPILED = 20.0


def check_blame_of_program(work: CaseAtWork, seconds: float) -> None:
    """Where a graph fails in eager: the program is at fault only if it fails as well when nothing is compiled.

    Dynamo may put into a graph what the program does not do. Such a graph looks like a bug of the program's until the
    program itself is run; where that passes, the capture is wrong.
    """
    blamed = work.case.triage
    if blamed is None or not work.is_the_programs:
        return
    try:
        program = work.program()
    except CannotRunProgram:
        return
    work.say("its graph fails without the compiler, too; running the program with nothing compiled")
    run = run_program(program, UNCOMPILED, timeout=max(LEAST_UNCOMPILED, seconds))
    if not run.healthy:
        ended = "was not done in time" if run.timed_out else f"ends with status {run.status}"
        detail = f"{blamed.detail}; the program with nothing compiled {ended}"
        work.write(triage=replace(blamed, detail=detail, pinned=not run.timed_out))
        return
    wrong = "the program passes when nothing is compiled, the graph that Dynamo made of it does not"
    work.write(
        triage=replace(
            blamed,
            component="dynamo",
            part="capture",
            detail=f"{wrong}: {blamed.detail}",
            pinned=True,
            labels=("oncall: pt2", "module: dynamo"),
        )
    )


def _offered(questions: ProgramQuestions) -> Iterator[Workaround]:
    """What the program passed with as a person would paste it, the mildest first; the others are not offered."""
    for change in list(reversed(questions.passed)):
        printed = change.as_printed
        if change is EMPTY_CACHE or printed == change or questions.ask(printed) is Answer.PASSES:
            yield _workaround(change)


def _workaround(change: Change) -> Workaround:
    """What the program passed with, as a person pastes it."""
    if change is EMPTY_CACHE:
        how = f'import os\nos.environ["TORCHINDUCTOR_CACHE_DIR"] = {f"{compile_cache()}-new"!r}'
        means = "what was compiled before; or remove that folder"
        return Workaround("an empty compile cache", how, True, disables=means, program=True)
    return Workaround.of(change, None, program=True)
