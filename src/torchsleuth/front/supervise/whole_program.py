"""What there is beyond single failures: a program that is a case as a whole, and a run with all of its cases.

A program may end with an error of its own, after compiled calls in which nothing failed, because it got something wrong
from the compiler. So it runs once more with nothing compiled; where it passes then, once more with every compiled call
compared with eager; and where that shows nothing, the whole program is the case.

Whole calls of a process that cannot be forked are compared in further runs, which can change nothing outside.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.folder import CaseFolder, open_case
from torchsleuth.core.cases.model import Triage
from torchsleuth.core.cases.record import record_at
from torchsleuth.core.cases.spool import WatchedProcess, watched_processes
from torchsleuth.core.change_table import UNCOMPILED
from torchsleuth.core.changes import NOTHING
from torchsleuth.core.processes.sealed import confined, why_not_confinable
from torchsleuth.core.protocol.failures import GivenUp, UncaughtError
from torchsleuth.core.protocol.steps import AdoptOrder
from torchsleuth.core.watching import AT_END, Again, Settings
from torchsleuth.front.supervise.case_at_work import CaseAtWork, Follow, Processes, processes_for
from torchsleuth.front.supervise.program import Supervised
from torchsleuth.front.supervise.program_blame import KnownRuns, component_by_runs
from torchsleuth.front.supervise.program_cures import try_on_program
from torchsleuth.front.supervise.program_runs import (
    COMPARING,
    SHARE,
    Caught,
    Program,
    ProgramRun,
    Say,
    Watch,
    cases_of_run,
    changed_environment,
    nobody,
    record_again,
    recorded,
    run_program,
    run_unseen,
)
from torchsleuth.front.supervise.road import investigate, minify
from torchsleuth.front.supervise.second_look import too_long_again

# Of what is left, for making a whole program small; the rest is for runs with less of it compiled.
SHARE_FOR_A_PROGRAM = 0.5


@dataclasses.dataclass(frozen=True)
class OnlyCompiled:
    """A program that ends with an error only when it is compiled: which one, how it ran, and ran uncompiled."""

    error: UncaughtError
    process: WatchedProcess
    program: Program
    first: ProgramRun
    uncompiled: ProgramRun

    @property
    def left_behind(self) -> list[GivenUp]:
        """What was given up and left torch's state changed."""
        return [each for each in self.process.given_up() if each.left]


def look_at_own_error(
    program: Program, settings: Settings, first: ProgramRun, deadline: float, say: Say
) -> OnlyCompiled | None:
    """What is known of a program that passes uncompiled, where no single call of it has become a failure.

    What the further runs report lies in the spool of the first, beside the records of that. Used as
    `look_at_own_error(program, settings, ProgramRun(1, 20.0), time.monotonic() + 300, print)`.
    """
    known = watched_processes(Path(settings.spool))
    found = [(error, process) for process in known if (error := process.uncaught()) is not None]
    if not found or any(process.failures() or process.rank is not None for process in known):
        return None
    error, process = found[0]
    compiled_something = process.captured_graphs() or process.given_up()
    if error.of_surroundings or not compiled_something or program.from_stdin:
        return None
    if (why := too_long_again(first.seconds, deadline - time.monotonic())) is not None:
        say(f"whether it is the compiler that makes the program fail was not tried: {why}")
        return None
    say(f"the program ended with an error of its own ({error.words}); running it with nothing compiled")
    uncompiled = run_program(program, UNCOMPILED, timeout=deadline - time.monotonic())
    if not uncompiled.healthy:
        how = "fails, too: the error is not the compiler's"
        if uncompiled.timed_out or uncompiled.last_word != error.type:
            how = "was not done in time" if uncompiled.timed_out else "fails in another way"
        say(f"with nothing compiled it {how}")
        return None
    say("with nothing compiled the program passes")
    only_compiled = OnlyCompiled(
        error, process, program, dataclasses.replace(first, tail=error.words), uncompiled
    )
    if only_compiled.left_behind:  # which says what happened, and where
        return only_compiled
    if settings.level < COMPARING and not too_long_again(first.seconds, deadline - time.monotonic()):
        say("running it once more, each compiled call compared with eager")
        if record_again(program, dataclasses.replace(settings, level=COMPARING), deadline):
            return None
        say("no compiled call differs from eager by itself")
    return only_compiled


@dataclasses.dataclass(frozen=True)
class ComparedCalls:
    """What came of comparing whole calls in further runs: cases, and what was left out and why."""

    cases: list[Caught]
    left_out: str = ""


# Less is not enough to load torch twice and run a program.
LEAST_SECONDS = 5.0


def compare_calls(program: Program, settings: Settings, cases_dir: Path, say: Say) -> ComparedCalls | None:
    """Compares the whole calls that could not be while the program ran; None where there were none.

    Used as `compare_calls(Program(("python", "train.py")), settings, Path("cases"), print)`.
    """
    spool, not_compared = Path(settings.spool), "whole calls are not compared with eager"
    known = watched_processes(spool)
    found = [left for process in known if (left := process.left_out()) is not None]
    if not found or any(process.failures() for process in known):
        return None
    (left, *others), why = found, why_not_confinable()
    if others or program.from_stdin or any(process.rank is not None for process in known):
        why = "several processes made them" if others else "the program cannot be run once more by itself"
    if why is None and left.seconds < LEAST_SECONDS:
        why = "the time for it is spent (--check-budget)"
    if why is not None:
        return ComparedCalls([], f"{not_compared}: {why}")
    say(
        f"comparing whole calls with eager: the program runs again, sealed off, for at most {left.seconds:.0f} s"
    )
    until, stopped = time.monotonic() + left.seconds, threading.Event()
    folders = [spool / f"calls-{number}" for number in range(4)]

    def run(number: int) -> Supervised:
        folders[number].mkdir()
        own = str(folders[number])
        try:
            paths = tuple(map(str, folders[: number + 1]))
            again = dataclasses.replace(settings, spool=own, again=Again(paths, left.calls, left.memory))
            command = tuple(confined(program.command, own))
            environment = {**changed_environment(program.change, folders[number]), **program.environment}
            environment = {"PYTHONHASHSEED": "0", **environment}
            sealed = dataclasses.replace(program, command=command, change=NOTHING)
            return run_unseen(sealed, again, until, enough=stopped.is_set, environment=environment)
        finally:
            (folders[number] / AT_END).touch()

    def pair(first: int) -> Supervised:
        """In eager and as captured, at once: what is captured waits for what eager has left."""
        with ThreadPoolExecutor(2) as pool:
            runs = [pool.submit(run, number) for number in (first, first + 1)]
            try:
                return [each.result() for each in runs][1]
            except BaseException:
                stopped.set()
                raise

    ended = pair(0)
    told = [call for process in watched_processes(folders[1]) for call in process.compared_calls()]
    cases = list[Caught]()
    if any(call.differs for call in told):
        ended = pair(2)
        cases, _ = cases_of_run(cases_dir, folders[3], ended)
    compared = sum(call.why_not is None for call in told)
    if compared >= left.calls or cases:
        return ComparedCalls(cases)
    reasons = [call.why_not for call in told if call.why_not is not None]
    why = (
        reasons[0]
        if reasons
        else "there was no time left"
        if ended.late
        else "its further run ends before them"
    )
    return ComparedCalls(
        [], f"{left.calls - compared} of {left.calls} whole calls are not compared with eager: {why}"
    )


def _blamed(found: OnlyCompiled, work: CaseAtWork) -> Triage:
    """What makes the program fail, and the line that does not get what it should.

    Where a capture left something behind, whether a run fails depends on what Python's garbage collector does: runs
    with less of the compiler would differ by that alone.
    """
    if found.left_behind:
        first = found.left_behind[0]
        detail = (
            f"Dynamo gave up `{first.function}` ({Path(first.file).name}:{first.line}) and left "
            f"{first.left_in_words} of the thread changed, in which Python then ran it uncompiled; "
            "with nothing compiled it passes"
        )
        line, code = found.error.place, found.error.code
        return Triage("dynamo", user_line=line, code=code, detail=detail, labels=("module: dynamo",))
    left = max(1.0, work.left)
    triage = component_by_runs(found.program, found.first, found.uncompiled, work.note, left)
    detail = f"{triage.detail}; every graph of it agrees with eager"
    return dataclasses.replace(triage, detail=detail, user_line=found.error.place, code=found.error.code)


def _compiled_functions(process: WatchedProcess) -> Iterator[tuple[str, int, str]]:
    """The functions of the program that graphs were captured of, or that were given up, with a line of each."""
    for folder in process.graph_folders():
        record = record_at(folder)
        for line in list(record.nodes.values())[:1] if record is not None else ():
            yield line.file, line.line, line.function
    yield from ((each.file, each.line, each.function) for each in process.given_up())


# -- the whole program as a case


def adopt(
    processes: Processes,
    script: Path,
    cases_dir: Path,
    seconds: float,
    note: Say,
    *,
    arguments: Sequence[str] = (),
    timeout: float | None = None,
    uncollected: bool = False,
) -> CaseFolder:
    """The case that a script of someone else's, or a program, becomes, by its arguments and its clock."""
    assert processes.host is not None
    where = str(script.absolute()), str(cases_dir.absolute())
    order = AdoptOrder(*where, tuple(arguments), timeout, uncollected)
    done = processes.host.ask(order, seconds, said=note)
    return open_case(cases_dir, done.case)


def investigate_own_error(
    found: OnlyCompiled, cases_dir: Path, workers: str | None, deadline: float, note: Say, follow: Follow
) -> Iterator[CaseFolder]:
    """The case that a whole program is, after each step: who is at fault, made small, worked around.

    Used as `for folder in investigate_own_error(found, cases_dir, "2", deadline, print, line.hear): ...`.
    """
    script = found.program.script
    if script is None or workers is None:
        note("the program fails only when it is compiled; go on with: torchsleuth minify SCRIPT")
        return
    try:
        with processes_for(None, workers) as processes:
            left = deadline - time.monotonic()
            arguments = found.program.arguments
            folder = adopt(
                processes,
                script,
                cases_dir,
                left,
                note,
                arguments=arguments,
                uncollected=bool(found.left_behind),
            )
            work = CaseAtWork(folder, processes, deadline, note, follow, found.program.change)
            program = {"command": list(found.program.command), "cwd": found.program.cwd}
            frames = list(_compiled_functions(found.process))
            work.write(extra={"program": program, "frames": frames})
            work.say(f"the program fails only when it is compiled: {found.error.words}")
            yield work.folder
            work.write(triage=_blamed(found, work))
            yield work.folder
            minify(work, work.left * SHARE_FOR_A_PROGRAM)
            yield work.folder
    except SleuthError as why:
        note(str(why))
        return
    try_on_program(work)
    yield work.folder


# -- a run that nobody is to see, and all that follows


def run_and_investigate(
    program: Program,
    *,
    watch: Watch,
    timeout: float,
    budget: float,
    cases_dir: Path,
    finished: Callable[[CaseFolder], object],
    say: Say,
    workers: str = "2",
) -> ProgramRun:
    """A run of a program that nobody is to see, and every case of it to its end, as `torchsleuth run` does it.

    `timeout` bounds all of it, `budget` what comes after the program's end; each case is handed to `finished`, and
    `say` is told of one that could not be investigated to its end.
    """
    until = time.monotonic() + timeout
    with recorded(program, NOTHING, watch, timeout, cases_dir) as found:
        deadline = min(until, time.monotonic() + budget)
        cases: list[Caught] = found.cases
        own = None
        if found.run.status and not found.run.timed_out and not cases:
            share = time.monotonic() + SHARE * (deadline - time.monotonic())
            own = look_at_own_error(program, found.settings, found.run, share, nobody)
            cases, _ = cases_of_run(cases_dir.absolute(), Path(found.settings.spool), Supervised())
        known, last = KnownRuns(), {folder.path: folder for folder, _ in cases}
        roads = [
            investigate(folder, process, deadline, workers, nobody, nobody, known, program.change)
            for folder, process in cases
        ]
        if own is not None:
            roads.append(investigate_own_error(own, cases_dir, workers, deadline, nobody, nobody))
        for road in roads:
            try:
                for folder in road:
                    last[folder.path] = folder
            except Exception as error:  # of this case; the others have their turn
                ours = "" if isinstance(error, SleuthError | OSError) else "a bug in torchsleuth, "
                say(f"a case was not investigated to its end: {ours}{type(error).__name__}: {error}")
        for folder in last.values():
            with contextlib.suppress(SleuthError):
                finished(folder)
        return dataclasses.replace(found.run, cases=tuple(folder.document() for folder in last.values()))
