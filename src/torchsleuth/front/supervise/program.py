"""Runs the user's program as a child and watches it from outside, where no crash or hang can reach.

The child keeps the terminal, the standard streams and the process group it would have without us; the hook is
reached through PYTHONPATH, so the program's own children and ranks behind a launcher are watched as well.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from torchsleuth.core.cases.spool import (
    UnderWay,
    WatchedProcess,
    crash_failure,
    hang_failure,
    watched_processes,
)
from torchsleuth.core.processes.child import Child
from torchsleuth.core.processes.limits import Stopwatch
from torchsleuth.core.processes.starting import bytecode
from torchsleuth.core.processes.tree import send
from torchsleuth.core.protocol.failures import Failure, fatal_signal, signal_of_status
from torchsleuth.core.watching import STACKS_SIGNAL, Settings
from torchsleuth.front.supervise.forwarding import Forwarder

PACKAGE = Path(__file__).resolve().parents[2]
# A compile that is slow is not a hang: autotuning may take an hour. This long, and we say that we noticed.
SLOW_SECONDS = 300.0
POLL_SECONDS = 0.2
# How long the program gets to end by itself after a hang was found.
GRACE_SECONDS = 3.0
# Someone asked the process to end; that it did so in the middle of a compile is nobody's bug.
ASKED_TO_END = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGXCPU}
FAULTS = {"SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL"}


@dataclass
class Supervised:
    """What came of the program: its exit status, and the failures no living process could report.

    `late` where it was ended because its time was up, `only_record` where it was asked to end: there is little time;
    `interrupted` where a person pressed Ctrl-C.
    """

    status: int = 0
    late: bool = False
    only_record: bool = False
    interrupted: bool = False
    lost: list[tuple[WatchedProcess, Failure]] = field(default_factory=list)


def child_environment(settings: Settings, environment: Mapping[str, str]) -> dict[str, str]:
    """The program's environment: as it was, with the hook first on PYTHONPATH and our settings beside it."""
    changed = {**environment, **bytecode(environment), **settings.to_environment()}
    changed["TORCHSLEUTH_HOME"] = str(PACKAGE.parent)
    for name in ("TORCHDYNAMO_REPRO_AFTER", "TORCHDYNAMO_REPRO_LEVEL"):
        changed.pop(name, None)  # asked of us; torch's own tool of that name would step in as well
    paths = [str(PACKAGE / "watched" / "inject"), *filter(None, [environment.get("PYTHONPATH")])]
    changed["PYTHONPATH"] = os.pathsep.join(paths)
    return changed


def supervise(
    command: Sequence[str],
    settings: Settings,
    environment: Mapping[str, str],
    *,
    note: Callable[[str], None],
    timeout: float | None,
    until: float = math.inf,
    unseen: bool = False,
    enough: Callable[[], bool] = lambda: False,
    cwd: str | None = None,
    stdout: int | None = None,
    stderr: BinaryIO | int | None = None,
) -> Supervised:
    """Runs `command` to its end under watch; `note` gets a sentence when something is worth saying meanwhile.

    At `until`, of time.monotonic, it is ended as by Ctrl-C. Only we know of a run that is `unseen`: it is ended then,
    or once there is `enough` of it, without being asked.
    """
    result, spool = Supervised(), Path(settings.spool)
    # What a person started has the descriptors that their shell opened for it (`torchsleuth run f.py <(echo x)`; our
    # own are not inherited), and goes on if we are killed. What only we know of does neither, and gets no signals.
    child = Child(
        command,
        environment=child_environment(settings, environment),
        cwd=cwd,
        stdout=stdout,
        stderr=stderr,
        apart=unseen,
    )
    watchdog = _Watchdog(spool, timeout)

    def end() -> None:
        """Asked first, killed after a moment, with everything it started."""
        started = [p.pid for p in watched_processes(spool) if p.is_alive]
        child.end(GRACE_SECONDS, also=started)

    forwarder = None if unseen else Forwarder(child)
    try:
        with forwarder or contextlib.nullcontext():
            while not _ended(child, forwarder):
                hung = watchdog.look(note)
                result.late = time.monotonic() > until
                if result.late and not unseen:
                    # As a person would: a program that saves what it has gets its chance.
                    child.send(signal.SIGINT)
                    child.ended_within(GRACE_SECONDS)
                if hung is not None or result.late or enough():
                    result.lost += [hung] if hung is not None else []
                    end()
                    break
    finally:
        if unseen:
            end()
    code = child.wait()
    result.status = 128 - code if code < 0 else code
    sent = forwarder.sent if forwarder is not None else set()
    result.only_record = bool(sent & ASKED_TO_END - {signal.SIGINT})
    result.interrupted = signal.SIGINT in sent
    if not result.lost and not result.late and -code not in sent:
        result.lost += _crashed(spool, child.pid, code, bool(sent & ASKED_TO_END))
    return result


def _ended(child: Child, forwarder: Forwarder | None) -> bool:
    """Waits a moment; whether the program has ended by then."""
    if forwarder is not None:
        forwarder.pass_on(POLL_SECONDS)
        return child.poll() is not None
    return child.ended_within(POLL_SECONDS)


class _Watchdog:
    """Notices when one compile or one call of a compiled graph takes too long, apart from waiting for a core."""

    def __init__(self, spool: Path, timeout: float | None, stacks_signal: int = STACKS_SIGNAL) -> None:
        self.spool = spool
        self.timeout = timeout
        self.stacks_signal = stacks_signal
        self.since: dict[Path, tuple[UnderWay, Stopwatch]] = {}
        self.noted: set[tuple[Path, UnderWay]] = set()
        self.next_look = 0.0

    def look(self, note: Callable[[str], None]) -> tuple[WatchedProcess, Failure] | None:
        """One look at every watched process; the hang it found, if there is one."""
        now = time.monotonic()
        if now < self.next_look:
            return None
        # Reading the counters is cheap, but a program of an hour needs no look every 0.2 s.
        self.next_look = now + (min(1.0, self.timeout / 10) if self.timeout else 2.0)
        for process in watched_processes(self.spool):
            where = None if process.finished else process.under_way()
            before = self.since.get(process.folder)
            if where is None or before is None or before[0] != where:
                self.since.pop(process.folder, None)
                if where is not None:
                    self.since[process.folder] = (where, Stopwatch(process.pid))
                continue
            took = before[1].seconds
            if self.timeout is not None and took > self.timeout and process.is_alive:
                return process, hang_failure(where, self._stacks(process), self.timeout)
            if took > SLOW_SECONDS and (process.folder, where) not in self.noted:
                self.noted.add((process.folder, where))
                self._stacks(process)
                doing = {"run": "running a compiled graph", "compile": "compiling", "capture": "capturing"}
                note(
                    f"process {process.pid} has been {doing[where.phase]} for {took:.0f} s; it goes on. "
                    f"Its stacks are in {process.folder / 'stacks.txt'}; --timeout S would end it and keep a case"
                )
        return None

    def _stacks(self, process: WatchedProcess) -> str:
        """Asks the process for the Python stacks of all its threads; works while native code holds the GIL."""
        if not process.is_alive:
            return process.stacks()
        send(process.pid, self.stacks_signal)
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline and "most recent call first" not in process.stacks():
            time.sleep(0.05)
        time.sleep(0.1)
        return process.stacks()


def _crashed(spool: Path, child: int, code: int, asked: bool) -> list[tuple[WatchedProcess, Failure]]:
    """The processes that died in the middle of a compile or a compiled call.

    Of a program that was `asked` to end only what no request explains: a fault of its own.
    """
    if -code in ASKED_TO_END:
        return []
    processes = watched_processes(spool)
    failed_elsewhere = any(p.failures() for p in processes)
    found = []
    for process in processes:
        where = None if process.finished or process.is_alive else process.under_way()
        if where is None:
            continue
        stacks = process.stacks()
        how = signal_of_status(code) if process.pid == child else fatal_signal(stacks)
        # A launcher ends the other ranks once one has failed: those leave no fatal signal of their own.
        if asked and (how is None or how not in FAULTS):
            continue
        if how is not None or not failed_elsewhere:
            found.append((process, crash_failure(where, how or "SIGKILL", stacks)))
    return found
