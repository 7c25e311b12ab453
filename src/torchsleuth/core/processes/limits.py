"""How much of the machine one trial may use before it is ended, and the clock that measures it.

Each phase has its own clock, which starts when the phase does: a slow machine that is still loading inputs has
not hung in the compiler. What ends a trial when the time for everything is up is the deadline.

A clock is a `Stopwatch`, which stands while its process waits for a core: on a machine that is busy with other work a
healthy compile takes several times as long as on an idle one, and a clock on the wall would take it for one that
hangs. The kernel knows how long each task was ready and did not get a core (/proc/PID/schedstat); where it does not
say (not Linux), a stopwatch is a clock on the wall.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace

from torchsleuth.core.processes.tree import descendants_of, tasks_of
from torchsleuth.core.protocol.codec import Document, from_json, plain

# A trial's own memory, where nothing was said: it must leave room for the search and for the user's programs.
SHARE_OF_FREE_MEMORY = 0.8
LEAST_MEMORY = 2 << 30
# Of a hang that was found without a clock.
NO_TIMEOUT = 30.0
# What a graph by itself has to last to have hung: not all that the program had, but this much for any, and for each of
# its calls several times what a healthy compile of one takes.
LEAST_HANG, SECONDS_A_CALL = 8.0, 0.1


@dataclass(frozen=True)
class Limits:
    """What one trial may use; seconds by phase, bytes of memory, bytes of output that are kept.

    `processes` bounds what a trial may start: a compile needs a handful (shell, g++, assembler, linker). `deadline`, of
    time.monotonic, ends it in any phase; nothing can be told of it then. `cpu` are seconds of computing, which a busy
    machine does not make longer.

    >>> Limits(compile=20).seconds("compile")
    20
    """

    setup: float = 180.0
    compile: float = 300.0
    run: float = 300.0
    memory: int | None = None
    output: int = 64 << 10
    processes: int = 64
    deadline: float | None = None
    cpu: float | None = None

    def seconds(self, phase: str) -> float:
        """The clock of a phase: `Limits().seconds("run")`."""
        return {"compile": self.compile, "run": self.run, "eager": self.run}.get(phase, self.setup)

    def to_json(self) -> dict[str, object]:
        """As a message to another process, maybe on another machine, whose clock reads something else."""
        left = None if self.deadline is None else self.deadline - time.monotonic()
        return {**plain(self), "deadline": left}

    @staticmethod
    def from_json(doc: Document) -> Limits:
        """What `to_json` wrote: `Limits.from_json(Limits().to_json()) == Limits()`."""
        given = from_json(Limits, doc)
        return given if given.deadline is None else replace(given, deadline=time.monotonic() + given.deadline)


def hang_seconds(timeout: object) -> float:
    """The clock under which a hang is told: the one it was caught under, where there was one.

    >>> hang_seconds(20), hang_seconds(None)
    (20.0, 30.0)
    """
    return float(timeout) if isinstance(timeout, (int, float)) and timeout else NO_TIMEOUT


def seconds_of_a_hang(timeout: object, calls: int | None) -> float:
    """The clock under which a graph of so many calls hangs by itself, which hung in a program under `timeout`.

    Half of what the program had is enough for any; a few calls hang sooner, and what must last long is hard to make
    small.

    >>> seconds_of_a_hang(40, 1000), seconds_of_a_hang(40, 20), seconds_of_a_hang(4, None)
    (20.0, 10.0, 8.0)
    """
    most = max(LEAST_HANG, hang_seconds(timeout) / 2)
    return most if calls is None else min(most, LEAST_HANG + SECONDS_A_CALL * calls)


def clock_of_a_hang(limits: Limits, kind: str, phase: str, timeout: object, room: float = 1.0) -> Limits:
    """The limits under which a failure of this kind is tried; what is to hang while it runs has to be compiled first.

    >>> clock_of_a_hang(Limits(), "hang", "compile", 60).compile
    30.0
    """
    if kind != "hang":
        return limits
    seconds = room * seconds_of_a_hang(timeout, None)
    return replace(limits, compile=limits.compile if phase == "run" else seconds, run=seconds)


def within(limits: Limits, deadline: float | None, least: float = 5.0) -> Limits:
    """The limits with an end of everything at `deadline` (of time.monotonic), but `least` seconds from now.

    >>> within(Limits(), time.monotonic() - 1).deadline > time.monotonic()
    True
    """
    return limits if deadline is None else replace(limits, deadline=max(deadline, time.monotonic() + least))


def fair_memory(workers: int) -> int | None:
    """What each of `workers` trials may take of the memory that is free now; None where that is unknown.

    >>> fair_memory(2) is None or fair_memory(2) >= LEAST_MEMORY
    True
    """
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            free = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        pages = os.sysconf("SC_PHYS_PAGES") if "SC_PHYS_PAGES" in os.sysconf_names else -1
        if pages < 0:
            return None
        free = pages * os.sysconf("SC_PAGE_SIZE") // 2
    return max(LEAST_MEMORY, int(free * SHARE_OF_FREE_MEMORY) // max(1, workers))


SAMPLE_SECONDS = 0.5
# Of any stretch of time, what counts at most as standing in line: a stopwatch never stands still.
MOST_IN_LINE = 0.9


class Stopwatch:
    """Runs from now on for a process and all below it: `Stopwatch(pid).seconds`.

    With no process it is a clock on the wall. It is to be read every second or so: what is below a process comes and
    goes.
    """

    def __init__(self, pid: int | None) -> None:
        self.pid = pid
        self._had = 0.0
        self._read = time.monotonic()
        self._tasks = {} if pid is None else _tasks([pid])

    @property
    def seconds(self) -> float:
        """Seconds since it was made, less those in which a task stood in line and none had its core."""
        now = time.monotonic()
        if now - self._read < SAMPLE_SECONDS:
            return self._had + now - self._read
        stretch, self._read = now - self._read, now
        before = self._tasks
        self._tasks = {} if self.pid is None else _tasks([self.pid, *descendants_of(self.pid)])
        ran = waited = 0.0
        for task, (all_run, all_waited) in self._tasks.items():
            ran_before, waited_before = before.get(task, (0.0, 0.0))
            ran += all_run - ran_before
            waited += all_waited - waited_before
        # Several tasks may stand in line at the same time, or one while another runs.
        in_line = min(waited, stretch - ran, MOST_IN_LINE * stretch)
        self._had += stretch - max(0.0, in_line)
        return self._had


def _tasks(processes: list[int]) -> dict[int, tuple[float, float]]:
    """For each task of these processes, seconds of its life in which it had a core, and in which it waited for one."""
    found = {}
    for pid in processes:
        for task in tasks_of(pid):
            try:
                with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as file:
                    ran, waited, _ = file.read().split()
                    found[task] = int(ran) / 1e9, int(waited) / 1e9
            except (OSError, ValueError):  # it has ended, or the kernel does not say
                continue
    return found
