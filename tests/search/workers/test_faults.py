"""Whatever a trial does, its process and everything it started end, and an Outcome says what happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import wait
from pathlib import Path

import pytest

import faulty
from faulty import FAILS, faulty_workers, trial
from torchsleuth.core.processes.limits import Limits, within
from torchsleuth.core.processes.tree import kill_marked, marked_processes, resident_bytes
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.search.workers.pool import Workers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@pytest.fixture
def workers():
    with faulty_workers() as made:
        yield made
    assert marked_processes(made._token) == []


def no_one_left(token: str, seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while marked_processes(token):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def only_the_server_is_left(workers: Workers, seconds: float = 60.0) -> bool:
    """The server, and the process it keeps ready for the next trial."""
    deadline = time.monotonic() + seconds
    command = Path(f"/proc/{workers._server.pid}/cmdline").read_bytes()
    while time.monotonic() < deadline:
        left = [Path(f"/proc/{pid}/cmdline") for pid in marked_processes(workers._token)]
        try:
            if len(left) <= 2 and all(path.read_bytes() == command for path in left):
                return True
        except OSError:
            pass
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("what", "signal_name"),
    [
        ("segv", "SIGSEGV"),
        ("abort", "SIGABRT"),
        ("fpe", "SIGFPE"),
        ("exit 7", "exit 7"),
        ("exit 0", "exit 0"),
        ("sysexit", "exit 3"),
    ],
)
def test_a_process_that_dies_is_a_crash_in_the_phase_it_announced_last(workers, what, signal_name):
    outcome = workers.run(trial(what))
    assert outcome.signature == Signature("crash", "run", signal=signal_name)
    assert outcome.error is None
    assert workers.run(trial("pass")).signature is None


def test_the_phase_of_a_crash_is_the_one_announced_last(workers):
    assert workers.run(trial("compile_segv")).signature == Signature("crash", "compile", signal="SIGSEGV")


def test_a_crash_keeps_what_was_printed_and_the_python_stack(workers):
    text = workers.run(trial("segv")).text
    assert "about to crash" in text
    assert "Fatal Python error: Segmentation fault" in text


def test_an_exception_of_our_own_is_an_error_and_no_failure(workers):
    outcome = workers.run(trial("raise"))
    assert outcome.signature is None
    assert outcome.error is not None and "a bug of ours" in outcome.error


@pytest.mark.parametrize("what", ["hang", "native_hang", "stubborn_hang"])
def test_a_hang_is_ended_when_its_phase_has_lasted_too_long(workers, what):
    outcome = workers.run(trial(what), limits=Limits(run=0.5))
    assert outcome.signature == Signature("hang", "run")
    assert outcome.seconds > 0.5  # by itself it would not have ended


def test_what_the_end_of_everything_cuts_off_is_no_hang(workers):
    outcome = workers.run(trial("hang"), limits=within(Limits(), time.monotonic() + 0.5, least=0.5))
    assert outcome.signature is None and "the time was up" in outcome.error


def test_a_hang_tells_where_it_stood_even_while_the_interpreter_is_locked(workers):
    assert "do_native_hang" in workers.run(trial("native_hang"), limits=Limits(run=0.5)).text


@pytest.mark.parametrize("what", ["setup_crash", "setup_hang"])
def test_what_happens_before_the_compile_tells_nothing_about_the_bug(workers, what):
    outcome = workers.run(trial(what), limits=Limits(setup=0.5))
    assert outcome.signature is None
    assert outcome.error is not None


def test_a_process_that_takes_too_much_memory_is_ended_before_the_machine_suffers(workers):
    limit = 400 << 20
    outcome = workers.run(trial("eat"), limits=Limits(memory=limit))
    assert outcome.signature == Signature("crash", "run", signal="SIGKILL")
    assert "memory" in outcome.text
    assert limit < outcome.seen.peak_memory < 3 * limit


def test_a_gigabyte_of_stderr_fills_neither_memory_nor_disk(workers, tmp_path):
    outcome = workers.run(trial("flood"), limits=Limits(run=120))
    assert outcome.signature is None and outcome.error is None
    assert resident_bytes(workers._server.pid) < 200 << 20
    written = sum(file.stat().st_size for file in workers.folder.rglob("*") if file.is_file())
    assert written < 1 << 20


def test_what_a_trial_leaves_behind_is_ended_with_it(workers):
    assert workers.run(trial("grandchild")).signature is None
    assert only_the_server_is_left(workers)


@pytest.mark.parametrize("what", ["bomb", "bomb sessions"])
def test_a_fork_bomb_is_ended_while_it_is_small(workers, what):
    outcome = workers.run(trial(what), limits=Limits(processes=40))
    assert outcome.signature == Signature("crash", "run", signal="SIGKILL")
    assert "processes" in outcome.text
    assert only_the_server_is_left(workers)


@pytest.mark.parametrize("what", ["babble", "close_everything"])
def test_nonsense_on_our_descriptors_harms_no_later_trial(workers, what):
    workers.run(trial(what))
    assert workers.run(trial("fail")).fails_like(FAILS)


def running(workers: Workers, what: str):
    ticket = workers.submit(trial(what))
    deadline = time.monotonic() + 60
    while ticket.pid is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.3)
    return ticket


def test_a_worker_killed_from_outside_is_an_outcome_and_not_remembered(workers):
    ticket = running(workers, "sleep 1000")
    os.kill(ticket.pid, signal.SIGKILL)
    outcome = ticket.result()
    assert outcome.signature == Signature("crash", "run", signal="SIGKILL")
    assert workers.log.answer(ticket.trial.key) is None


def test_a_killed_server_is_replaced_and_its_trial_tried_again(workers):
    ticket = running(workers, "sleep 2")
    first, token = workers._server.pid, workers._token
    os.kill(first, signal.SIGKILL)
    assert ticket.result().signature is None
    assert ticket.servers_lost == 1
    assert workers._server.pid != first
    assert no_one_left(token)


def test_a_killed_server_leaves_no_grandchild(workers):
    ticket = running(workers, "grandchild wait")
    token = workers._token
    os.kill(workers._server.pid, signal.SIGKILL)
    assert no_one_left(token)
    ticket.cancel()


def test_a_trial_that_kills_its_server_twice_is_told_as_an_error(workers):
    outcome = workers.run(trial("kill_server"))
    assert outcome.error is not None and "twice" in outcome.error
    assert workers.run(trial("fail")).fails_like(FAILS)


def test_nothing_is_left_when_the_parent_is_killed(tmp_path):
    program = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from faulty import faulty_workers, trial\n"
        "workers = faulty_workers(2)\n"
        "tickets = [workers.submit(trial('grandchild wait')) for _ in range(2)]\n"
        "while any(t.pid is None for t in tickets): time.sleep(0.01)\n"
        "time.sleep(0.5); print(workers._token, workers.folder, flush=True); time.sleep(1000)\n"
    )
    command = [sys.executable, "-c", program, str(Path(faulty.__file__).parent)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    token, folder = parent.stdout.readline().split()
    assert len(marked_processes(token)) >= 8  # the server, its spare, and each trial with two grandchildren
    parent.kill()
    parent.wait()
    try:
        assert no_one_left(token)
        assert not Path(folder).exists()
    finally:
        kill_marked(token)


def test_a_cancelled_trial_ends_before_its_time_and_frees_its_place(workers):
    ticket = running(workers, "sleep 1000")
    assert ticket.cancel()
    assert workers.run(trial("fail")).fails_like(FAILS)
    assert ticket.cancelled() and wait([ticket]).done
    assert only_the_server_is_left(workers)


@pytest.mark.parametrize("end", ["cancelled", "everything ends"])
def test_a_header_that_an_ended_trial_was_precompiling_is_not_left_half_written(tmp_path, monkeypatch, end):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with faulty_workers() as workers:
        ticket = running(workers, "precompile")
        while not (found := list(tmp_path.glob("torchinductor_*/precompiled_headers/*.gch"))):
            assert not ticket.done()
            time.sleep(0.05)
        (header,) = found
        if end == "cancelled":
            assert ticket.cancel() and wait([ticket]).done
            assert workers.run(trial("pass")).text == "passed"
            assert not header.exists()
    assert not header.exists()


def test_where_no_server_can_follow_one_that_was_killed_nobody_waits_for_ever(workers, monkeypatch):
    def refused(*_arguments: object, **_more: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    workers.wait_ready()
    monkeypatch.setattr("torchsleuth.search.workers.pool.begin_call", refused)
    outcome = workers.submit(trial("kill_server")).result(timeout=60)
    assert "Resource temporarily unavailable" in outcome.error


def test_a_server_that_cannot_start_is_an_error_that_says_why(tmp_path):
    broken = {**os.environ, "PYTHONHOME": str(tmp_path)}
    with Workers(1, warm_up=None, environment=broken) as workers:
        outcome = workers.run(trial("pass"))
    assert outcome.error is not None and "could be started" in outcome.error
