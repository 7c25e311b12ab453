"""A stopwatch stands while its process waits for a core, and a clock on the wall does not."""

import os
import subprocess
import sys
import time

import pytest

from torchsleuth.core.processes import limits
from torchsleuth.core.processes.limits import Stopwatch

SPIN = "while True: pass"


@pytest.fixture
def clock(monkeypatch):
    """A clock to turn, and what the kernel says of the tasks of process 7: seconds with a core, and waiting for one."""
    now, tasks = [0.0], {7: (0.0, 0.0)}
    monkeypatch.setattr(limits.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(limits, "_tasks", lambda processes: dict(tasks))
    return now, tasks


def test_what_stood_in_line_does_not_count(clock):
    now, tasks = clock
    watch = Stopwatch(7)
    now[0], tasks[7] = 10.0, (1.0, 6.0)
    assert watch.seconds == 4.0
    now[0] = 10.25
    assert watch.seconds == 4.25


def test_a_child_that_waits_while_its_parent_sleeps_counts_as_one_that_does(clock):
    now, tasks = clock
    watch = Stopwatch(7)
    now[0], tasks[8] = 10.0, (5.0, 5.0)
    assert watch.seconds == 5.0
    del tasks[8]  # it has ended: what it waited stays counted
    now[0] = 20.0
    assert watch.seconds == 15.0


def test_threads_that_wait_for_each_others_cores_count_while_one_of_them_runs(clock):
    now, tasks = clock
    watch = Stopwatch(7)
    now[0], tasks[7], tasks[8] = 10.0, (4.0, 6.0), (4.0, 6.0)
    assert watch.seconds == 8.0


def test_a_clock_ends_however_long_the_line_is(clock):
    now, tasks = clock
    watch = Stopwatch(7)
    for second in range(1, 101):
        now[0], tasks[7] = float(second), (0.0, float(second))
        reached = watch.seconds
    assert reached == pytest.approx(10.0)


def test_where_no_process_is_known_it_is_a_clock_on_the_wall(clock):
    now, _ = clock
    watch = Stopwatch(None)
    now[0] = 3.0
    assert watch.seconds == 3.0


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="the kernel does not say who waits")
def test_two_that_share_a_core_have_less_than_the_wall_says():
    core = min(os.sched_getaffinity(0))
    busy = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(3)]
    try:
        for process in busy:
            os.sched_setaffinity(process.pid, {core})
        watch, started = Stopwatch(busy[0].pid), time.monotonic()
        time.sleep(2.5)
        assert watch.seconds < 0.75 * (time.monotonic() - started)
    finally:
        for process in busy:
            process.kill()
            process.wait()
