"""The second look at a case whose script does not fail by itself: the program runs once more, and more of it is kept.

It is told which graphs the failure came from and which calls of them; before those calls everything that they see is
kept: all values, with views and shared memory, and the state of the random numbers. What comes of it are the records of
the same graphs again, as the first run left them, with nothing missing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.folder import CaseFolder
from torchsleuth.core.cases.model import Case
from torchsleuth.core.cases.record import read_record
from torchsleuth.core.cases.spool import WatchedProcess, watched_processes
from torchsleuth.core.criteria import ONCE_MORE
from torchsleuth.core.processes.last_will import scratch
from torchsleuth.core.processes.limits import hang_seconds
from torchsleuth.core.watching import Settings
from torchsleuth.front.program.runs import Program, program_of
from torchsleuth.front.supervise.program import RunAgain, supervise
from torchsleuth.script_runtime.signature import signature_from_json

# Of the time that is left, the share for a second run of the program.
SHARE = 0.5
# Loading torch is not in what is known of the first run, and the second writes more.
START_SECONDS, SLOWER = 15.0, 1.5


class NoSecondLook(SleuthError):
    """The program was not run once more, or did not fail again; says why."""


@contextlib.contextmanager
def second_look(
    folder: CaseFolder, process: WatchedProcess, deadline: float
) -> Iterator[tuple[Path, WatchedProcess]]:
    """The folder of the failing graph's record, from another run of the program, and the process that left it.

    Used as `with second_look(folder, process, deadline) as (record, again): ...`; both are gone afterwards.
    """
    case = folder.case
    program = program_of(folder)
    if program.from_stdin:
        raise NoSecondLook("the program was read from the standard input, which cannot be read again")
    left = (deadline - time.monotonic()) * SHARE
    needed = (_seconds_to_failure(case, process) + START_SECONDS) * SLOWER
    if needed > left:
        raise NoSecondLook(
            f"to run the program once more takes about {needed:.0f} s, and there are {max(left, 0):.0f} s for that "
            "(--budget)"
        )
    with tempfile.TemporaryDirectory(dir=scratch()) as spool:
        keep = tuple((str(graph), int(number)) for graph, number in case.extra.get("calls") or ())
        settings = Settings(
            spool,
            level=4 if case.kind == "accuracy" else 2,
            keep=keep,
            synchronised=case.device != "cpu" and case.kind == "runtime_error",
        )
        again = RunAgain(program.cwd, time.monotonic() + left, lambda: _same_failure(case, spool) is not None)
        timeout = hang_seconds(case.extra.get("timeout")) if case.kind == "hang" else None
        ended = supervise(
            program.command, settings, timeout=timeout, stdout=None, note=lambda _: None, again=again
        )
        found = _same_failure(case, spool, ended.lost)
        if found is None:
            late = f"was not done after {left:.0f} s" if ended.late else "did not fail in the same way"
            raise NoSecondLook(f"the program, run once more, {late}")
        yield found


def look_for_device_fault(
    command: Sequence[str],
    settings: Settings,
    timeout: float | None,
    deadline: float,
    say: Callable[[str], None],
) -> None:
    """Where a device failed and no call of a graph was seen to fail: the program once more, each call waited for.

    What comes of it lies in the spool of the first run, beside the records of that.
    """
    first = watched_processes(Path(settings.spool))
    faults = [fault for process in first if (fault := process.device_fault()) and not any(process.failures())]
    if not faults or Program(tuple(command)).from_stdin:
        return
    say(f"the device failed, and nobody was waiting for it: {faults[0]}")
    say("running the program once more, with a wait after each compiled call, to see which one it is")
    known = {process.folder for process in first}

    def seen() -> bool:
        later = [p for p in watched_processes(Path(settings.spool)) if p.folder not in known]
        return any(True for process in later for _ in process.failures())

    again = RunAgain(os.getcwd(), deadline, seen)
    careful = dataclasses.replace(settings, synchronised=True)
    supervise(command, careful, timeout=timeout, stdout=None, note=lambda _: None, again=again)
    if not seen():
        say("it was no compiled call, or the failure did not come again")


def _seconds_to_failure(case: Case, process: WatchedProcess) -> float:
    seen = datetime.fromisoformat(case.last_seen or case.created).timestamp()
    return max(0.0, seen - float(process.facts["started"]))


def _same_failure(
    case: Case, spool: str, lost: list[tuple[WatchedProcess, dict[str, Any]]] | None = None
) -> tuple[Path, WatchedProcess] | None:
    """Where the failing graph's record lies; one of the very graph first, if the failure came in several."""
    reported = [(process, each) for process in watched_processes(Path(spool)) for each in process.failures()]
    same = [
        (Path(each["record"]), process)
        for process, each in [*reported, *(lost or ())]
        if each.get("record") and ONCE_MORE.same(case.signature, signature_from_json(each["signature"]))
    ]
    wanted = [str(graph) for graph, _ in case.extra.get("calls") or ()]
    same.sort(key=lambda found: read_record(found[0] / "record.json").hash not in wanted)
    return same[0] if same else None
