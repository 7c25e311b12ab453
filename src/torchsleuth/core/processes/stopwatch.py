"""How long a process has had, apart from the time in which it stood in line for a core.

On a machine that is busy with other work a healthy compile takes several times as long as on an idle one, and a clock
on the wall would take it for one that hangs. The kernel knows how long each task was ready and did not get a core
(/proc/PID/schedstat); where it does not say (not Linux), a stopwatch is a clock on the wall.
"""

from __future__ import annotations

import time

from torchsleuth.core.processes.tree import descendants_of, tasks_of

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
