"""The program once more, watched for its failure with everything kept: what a script of its graph had not shown.

It is told which calls the failure came from. Before those everything that they see is kept: all values with views and
shared memory, and the state of the random numbers.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.model import Case
from torchsleuth.core.cases.record import read_record
from torchsleuth.core.cases.spool import WatchedProcess, watched_processes
from torchsleuth.core.criteria import ONCE_MORE
from torchsleuth.core.processes.child import scratch
from torchsleuth.core.protocol.failures import Failure
from torchsleuth.core.watching import Settings
from torchsleuth.front.supervise.case_at_work import CaseAtWork
from torchsleuth.front.supervise.program_runs import SHARE, run_unseen, watch_for


class NoSecondLook(SleuthError):
    """The program was not run once more, or did not fail again; says why."""


# Loading torch is not in what is known of a first run, and a second one writes more.
START_SECONDS, SLOWER = 15.0, 1.5


def too_long_again(first: float, left: float) -> str | None:
    """Why there is no time to run a program again of which the first run took `first` seconds; None where there is.

    >>> too_long_again(5.0, 100.0), too_long_again(5.0, 20.0)
    (None, 'to run the program once more takes about 30 s, and there are 20 s for that (--budget)')
    """
    needed, left = (first + START_SECONDS) * SLOWER, max(0.0, left)
    if needed <= left:
        return None
    return f"to run the program once more takes about {needed:.0f} s, and there are {left:.0f} s for that (--budget)"


@contextlib.contextmanager
def second_look(work: CaseAtWork, process: WatchedProcess) -> Iterator[tuple[Path, WatchedProcess]]:
    """The folder of the failing graph's record, from another run of the program, and the process that left it.

    Used as `with second_look(work, process) as (record, again): ...`; both are gone afterwards.
    """
    program, known = work.program(), work.case
    if program.from_stdin:
        raise NoSecondLook("the program was read from the standard input, which cannot be read again")
    seen = datetime.fromisoformat(known.last_seen or known.created).timestamp()
    left = work.left * SHARE
    if (why := too_long_again(max(0.0, seen - float(process.facts["started"])), left)) is not None:
        raise NoSecondLook(why)
    with tempfile.TemporaryDirectory(dir=scratch()) as spool:
        settings = Settings(
            spool,
            level=4 if known.kind == "accuracy" else 2,
            keep=tuple((str(graph), int(number)) for graph, number in known.extra.get("calls") or ()),
            synchronised=known.device != "cpu" and known.kind == "runtime_error",
        )
        ended = run_unseen(
            program,
            settings,
            time.monotonic() + left,
            timeout=watch_for(known).timeout,
            enough=lambda: _same_failure(known, spool) is not None,
        )
        found = _same_failure(known, spool, ended.lost)
        if found is None:
            late = f"was not done after {left:.0f} s" if ended.late else "did not fail in the same way"
            raise NoSecondLook(f"the program, run once more, {late}")
        yield found


def _same_failure(
    case: Case, spool: str, lost: Sequence[tuple[WatchedProcess, Failure]] = ()
) -> tuple[Path, WatchedProcess] | None:
    """Where the failing graph's record lies; one of the very graph first, if the failure came in several."""
    reported = [(process, each) for process in watched_processes(Path(spool)) for each in process.failures()]
    same = [
        (Path(each.record), process)
        for process, each in [*reported, *lost]
        if each.record and ONCE_MORE.same(case.signature, each.signature)
    ]
    wanted = [str(graph) for graph, _ in case.extra.get("calls") or ()]
    same.sort(key=lambda found: read_record(found[0] / "record.json").hash not in wanted)
    return same[0] if same else None
