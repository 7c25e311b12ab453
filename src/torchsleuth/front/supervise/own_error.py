"""The second look at a program that ends with an error of its own, after compiled calls in which nothing failed.

It may have got something wrong from the compiler. So it runs once more with nothing compiled; where it passes then,
once more with every compiled call compared with eager; and where that shows nothing, the whole program is the case.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.folder import CaseFolder, open_case, update_case
from torchsleuth.core.cases.record import read_record
from torchsleuth.core.cases.spool import UncaughtError, WatchedProcess, watched_processes
from torchsleuth.core.change_table import UNCOMPILED
from torchsleuth.core.watching import Settings
from torchsleuth.front.program.component import component_by_runs
from torchsleuth.front.program.own_workarounds import try_on_program
from torchsleuth.front.program.runs import Program, ProgramRun, run_program
from torchsleuth.front.supervise.pipeline import Hear, minify_step, processes_for
from torchsleuth.front.supervise.program import RunAgain, supervise
from torchsleuth.front.supervise.second_look import SLOWER, START_SECONDS

Say = Callable[[str], None]
# Of what is left, for making the program small; the rest is for runs with less of it compiled.
SHARE_FOR_MINIFYING = 0.5
CHECKED_LEVEL = 4


@dataclasses.dataclass(frozen=True)
class OnlyCompiled:
    """A program that ends with an error only when it is compiled: which one, how it ran, and ran uncompiled."""

    error: UncaughtError
    process: WatchedProcess
    program: Program
    first: ProgramRun
    uncompiled: ProgramRun


def look_at_own_error(
    command: Sequence[str], settings: Settings, first: ProgramRun, deadline: float, say: Say
) -> OnlyCompiled | None:
    """What is known of a program that passes uncompiled, where no single call of it has become a failure.

    What the further runs report lies in the spool of the first, beside the records of that. Used as
    `look_at_own_error(["python", "train.py"], settings, ProgramRun(1, 20.0), time.monotonic() + 300, print)`.
    """
    known = watched_processes(Path(settings.spool))
    program = Program(tuple(command), os.getcwd())
    found = [(error, process) for process in known if (error := process.uncaught()) is not None]
    if not found or any(process.failures() or process.rank is not None for process in known):
        return None
    error, process = found[0]
    if error.of_surroundings or not process.captured_graphs() or program.from_stdin:
        return None
    if not _is_time(first, deadline):
        say(
            f"whether it is the compiler that makes the program fail was not tried: {_why_no_time(first, deadline)}"
        )
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
    if settings.level < CHECKED_LEVEL and _is_time(first, deadline):
        say("running it once more, each compiled call compared with eager")
        if _compared(command, settings, {each.folder for each in known}, deadline):
            return None
        say("no compiled call differs from eager by itself")
    seen = dataclasses.replace(first, tail=error.words)
    return OnlyCompiled(error, process, program, seen, uncompiled)


def _is_time(first: ProgramRun, deadline: float) -> bool:
    return (first.seconds + START_SECONDS) * SLOWER < deadline - time.monotonic()


def _why_no_time(first: ProgramRun, deadline: float) -> str:
    left = max(0.0, deadline - time.monotonic())
    needed = (first.seconds + START_SECONDS) * SLOWER
    return f"to run it once more takes about {needed:.0f} s, and there are {left:.0f} s for that (--budget)"


def _compared(command: Sequence[str], settings: Settings, known: set[Path], deadline: float) -> bool:
    """Whether a run of the program with every result compared has reported a failure."""

    def seen() -> bool:
        later = [p for p in watched_processes(Path(settings.spool)) if p.folder not in known]
        return any(process.failures() for process in later)

    again = RunAgain(os.getcwd(), deadline)
    careful = dataclasses.replace(settings, level=CHECKED_LEVEL)
    supervise(command, careful, timeout=None, stdout=None, note=lambda _: None, again=again)
    return seen()


def case_of_own_error(
    found: OnlyCompiled, cases_dir: Path, workers: str | None, deadline: float, say: Say, heard: Hear
) -> Iterator[CaseFolder]:
    """The case that the whole program is, after each step: who is at fault, made small, worked around.

    Used as `for folder in case_of_own_error(found, cases_dir, "2", deadline, print, line.hear): ...`.
    """
    script = _script_of(found.program)
    if script is None or workers is None:
        say("the program fails only when it is compiled; go on with: torchsleuth minify SCRIPT")
        return
    try:
        with processes_for(None, workers) as processes:
            assert processes.host is not None
            left = deadline - time.monotonic()
            places: dict[str, Any] = {"script": str(script), "cases": str(cases_dir.absolute())}
            arguments = found.program.command[2:]
            told = processes.host.ask("adopt", left, said=say, **places, arguments=arguments)
            folder = _with_facts(open_case(cases_dir, told["case"]), found)
            say(f"case {folder.case.id}: the program fails only when it is compiled: {found.error.words}")
            yield folder
            folder = _blamed(folder, found, deadline, say)
            yield folder
            left = (deadline - time.monotonic()) * SHARE_FOR_MINIFYING
            folder = minify_step(folder, processes, left, say, heard).folder
            yield folder
    except SleuthError as why:
        say(str(why))
        return
    yield try_on_program(folder, deadline, say)


def _script_of(program: Program) -> Path | None:
    words = program.command
    if len(words) < 2 or words[0] != sys.executable or not words[1].endswith(".py"):
        return None
    return (Path(program.cwd or ".") / words[1]).absolute()


def _with_facts(folder: CaseFolder, found: OnlyCompiled) -> CaseFolder:
    program = {"command": list(found.program.command), "cwd": found.program.cwd}
    frames = list(_compiled_functions(found.process))
    return update_case(folder, extra={**folder.case.extra, "program": program, "frames": frames})


def _blamed(folder: CaseFolder, found: OnlyCompiled, deadline: float, say: Say) -> CaseFolder:
    """The case with the component that makes the program fail, and the line that does not get what it should."""
    triage = component_by_runs(
        found.program, found.first, found.uncompiled, say, max(1.0, deadline - time.monotonic())
    )
    detail = f"{triage.detail}; every graph of it agrees with eager"
    blamed = dataclasses.replace(triage, detail=detail, user_line=found.error.place, code=found.error.code)
    return update_case(folder, triage=blamed)


def _compiled_functions(process: WatchedProcess) -> Iterator[tuple[str, int, str]]:
    """The functions of the program that graphs were captured of, with a line of each."""
    for folder in process.graph_folders():
        try:
            record = read_record(folder / "record.json")
        except ValueError:
            continue
        yield from dict.fromkeys(
            (line.file, line.line, line.function) for line in list(record.nodes.values())[:1]
        )
