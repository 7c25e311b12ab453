"""Signals to the supervisor are the program's; what kills it by itself is still a crash."""

import json
import os
import pty
import signal
import struct
import subprocess
import sys
import time

import pytest

from torchsleuth.core.processes.tree import this_process
from torchsleuth.core.protocol.codec import to_json
from torchsleuth.front.supervise.program import _crashed

# Says which signals it got, and ends with the second.
PROGRAM = """
import signal, sys, time
def got(number, frame):
    print(signal.Signals(number).name if number < 32 else number, flush=True)
    left.pop() if left else sys.exit(7)
left = [0] * int(sys.argv[1])
for number in signal.valid_signals() - {9, 19, 17}:
    signal.signal(number, got)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


def none_ignored():
    """A shell that starts the tests in the background has these ignored, and we leave ignored what was."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def started(tmp_path):
    begun = []

    def start(left, first=lambda: None, **how):
        def before_it_begins():
            none_ignored()
            first()

        (tmp_path / "program.py").write_text(PROGRAM)
        command = [sys.executable, "-m", "torchsleuth", "run", "--cases", "cases", "program.py", str(left)]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True, **how}
        begun.append(
            subprocess.Popen(
                command, cwd=tmp_path, start_new_session=True, preexec_fn=before_it_begins, **streams
            )
        )
        return begun[-1]

    yield start
    for each in begun:
        if each.poll() is None:
            os.killpg(each.pid, signal.SIGKILL)
        each.wait()


@pytest.mark.parametrize(
    "number",
    [
        *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
        *(signal.SIGQUIT, signal.SIGABRT, signal.SIGPROF, signal.SIGXCPU, int(signal.SIGRTMIN) + 3),
    ],
)
def test_every_signal_reaches_the_program_once_and_its_status_is_ours(started, number):
    if not isinstance(number, signal.Signals) and not sys.platform.startswith("linux"):
        pytest.skip("needs real-time signals")
    run = started(1)
    assert run.stdout.readline() == "ready\n"
    run.send_signal(number)
    name = number.name if isinstance(number, signal.Signals) else str(number)
    assert run.stdout.readline() == f"{name}\n"
    run.send_signal(signal.SIGUSR1)
    assert run.stdout.read() == "SIGUSR1\n"
    assert run.wait(60) == 7


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT, signal.SIGHUP])
def test_one_that_was_ignored_at_the_start_reaches_a_program_that_handles_it(started, number):
    """As from `torchsleuth run train.py &` in a script, or under nohup."""
    run = started(1, lambda: signal.signal(number, signal.SIG_IGN))
    assert run.stdout.readline() == "ready\n"
    run.send_signal(number)
    assert run.stdout.readline() == f"{number.name}\n"
    run.send_signal(signal.SIGUSR1)
    assert run.wait(60) == 7


def test_a_program_that_leaves_it_ignored_goes_on_and_is_searched_as_ever(tmp_path):
    (tmp_path / "program.py").write_text(
        "import signal, sys, time\nprint(signal.getsignal(2) is signal.SIG_IGN, flush=True)\n"
        "sys.stdin.readline()\nprint('went on', flush=True)\n"
    )

    def before_it_begins():
        none_ignored()
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    run = subprocess.Popen(
        [sys.executable, "-m", "torchsleuth", "run", "program.py"],
        cwd=tmp_path,
        text=True,
        preexec_fn=before_it_begins,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert run.stdout.readline() == "True\n"
    run.send_signal(signal.SIGINT)
    run.send_signal(signal.SIGHUP)
    said, noted = run.communicate("\n", timeout=120)
    assert (run.returncode, said) == (0, "went on\n") and "nterrupt" not in noted, noted


def test_ctrl_c_in_a_terminal_is_not_sent_twice(started):
    ours, theirs = pty.openpty()
    # The terminal becomes that of the new session, and its Ctrl-C goes to supervisor and program alike.
    take = lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0)  # noqa: E731
    run = started(5, take, stdin=theirs)
    assert run.stdout.readline() == "ready\n"
    os.write(ours, b"\x03")
    assert run.stdout.readline() == "SIGINT\n"
    time.sleep(0.5)
    run.send_signal(signal.SIGUSR2)
    assert run.stdout.readline() == "SIGUSR2\n"  # and no second SIGINT before it
    os.close(ours)
    os.close(theirs)


@pytest.fixture
def died(tmp_path):
    """A process that died while it compiled its one graph; what it left says of which signal."""

    def spool(stacks):
        folder = tmp_path / "p1"
        (folder / "g1").mkdir(parents=True)
        gone = {**to_json(this_process()), "started": 1}
        facts = {"pid": os.getpid(), "identity": gone, "started": 0.0, "argv": []}
        (folder / "process.json").write_text(json.dumps(facts))
        (folder / "g1" / "record.json").write_text(json.dumps({"level": "aot"}))
        (folder / "stacks.txt").write_text(stacks)
        (folder / "counters").write_bytes(struct.pack("<4Q", 0, 0, 1, 0))
        return tmp_path

    return spool


def test_a_crash_after_a_handled_ctrl_c_is_recorded(died):
    spool = died("Fatal Python error: Segmentation fault")
    found = _crashed(spool, os.getpid(), -signal.SIGSEGV, asked=True)
    assert [failure.signature.signal for _, failure in found] == ["SIGSEGV"]


@pytest.mark.parametrize("code", [-signal.SIGKILL, 1, -signal.SIGTERM])
def test_a_program_that_was_asked_to_end_and_did_has_not_crashed(died, code):
    assert _crashed(died(""), os.getpid(), code, asked=True) == []


def test_a_program_that_was_killed_unasked_has_crashed(died):
    assert len(_crashed(died(""), os.getpid(), -signal.SIGKILL, asked=False)) == 1
