"""How long a process has had, apart from the time in which it stood in line for a core.

On a machine that is busy with other work a healthy compile takes several times as long as on an idle one, and a clock
on the wall would take it for one that hangs. The kernel knows how long each task was ready and did not get a core
(/proc/PID/schedstat); where it does not say (not Linux), a stopwatch is a clock on the wall.
"""

from __future__ import annotations

import time

from torchsleuth.processes.tree import descendants_of, tasks_of

SAMPLE_SECONDS = 1.0
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
        self._in_line = {} if pid is None else _in_line([pid])

    @property
    def seconds(self) -> float:
        """Seconds since it was made, less those in which the task that waited longest stood in line."""
        now = time.monotonic()
        if now - self._read < SAMPLE_SECONDS:
            return self._had + now - self._read
        stretch, self._read = now - self._read, now
        before = self._in_line
        self._in_line = {} if self.pid is None else _in_line([self.pid, *descendants_of(self.pid)])
        waited = max((each - before.get(task, 0.0) for task, each in self._in_line.items()), default=0.0)
        self._had += stretch - min(max(0.0, waited), MOST_IN_LINE * stretch)
        return self._had


def _in_line(processes: list[int]) -> dict[int, float]:
    """For each task of these processes, how many seconds of its life it was ready and had no core."""
    found = {}
    for pid in processes:
        for task in tasks_of(pid):
            try:
                with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as file:
                    found[task] = int(file.read().split()[1]) / 1e9
            except (OSError, ValueError, IndexError):  # it has ended, or the kernel does not say
                continue
    return found
