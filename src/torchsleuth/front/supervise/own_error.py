"""A program that ends with an error of its own, after compiled calls in which nothing failed.

It may have got something wrong from the compiler. So it runs once more with nothing compiled; where it passes then,
once more with every compiled call compared with eager; and where that shows nothing, the whole program is the case.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from torchsleuth.core.cases.record import read_record
from torchsleuth.core.cases.spool import UncaughtError, WatchedProcess, watched_processes
from torchsleuth.core.change_table import UNCOMPILED
from torchsleuth.core.watching import Settings
from torchsleuth.front.supervise.case_at_work import CaseAtWork
from torchsleuth.front.supervise.program_blame import component_by_runs
from torchsleuth.front.supervise.program_runs import (
    COMPARING,
    Program,
    ProgramRun,
    Say,
    record_again,
    run_program,
    too_long_again,
)


@dataclasses.dataclass(frozen=True)
class OnlyCompiled:
    """A program that ends with an error only when it is compiled: which one, how it ran, and ran uncompiled."""

    error: UncaughtError
    process: WatchedProcess
    program: Program
    first: ProgramRun
    uncompiled: ProgramRun

    @property
    def script(self) -> Path | None:
        """Its file, where it is a script that Python runs."""
        words = self.program.command
        if len(words) < 2 or words[0] != sys.executable or not words[1].endswith(".py"):
            return None
        return (Path(self.program.cwd or ".") / words[1]).absolute()


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
    if error.of_surroundings or not process.captured_graphs() or program.from_stdin:
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
    if settings.level < COMPARING and not too_long_again(first.seconds, deadline - time.monotonic()):
        say("running it once more, each compiled call compared with eager")
        if record_again(program, dataclasses.replace(settings, level=COMPARING), deadline):
            return None
        say("no compiled call differs from eager by itself")
    return OnlyCompiled(error, process, program, dataclasses.replace(first, tail=error.words), uncompiled)


def blame_own_error(case: CaseAtWork, found: OnlyCompiled) -> None:
    """Puts into the case of a whole program what makes it fail, and the line that does not get what it should."""
    program = {"command": list(found.program.command), "cwd": found.program.cwd}
    frames = list(_compiled_functions(found.process))
    case.write(extra={**case.case.extra, "program": program, "frames": frames})
    case.say(f"the program fails only when it is compiled: {found.error.words}")
    left = max(1.0, case.left)
    triage = component_by_runs(found.program, found.first, found.uncompiled, case.tell, left)
    detail = f"{triage.detail}; every graph of it agrees with eager"
    blamed = dataclasses.replace(triage, detail=detail, user_line=found.error.place, code=found.error.code)
    case.write(triage=blamed)


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
