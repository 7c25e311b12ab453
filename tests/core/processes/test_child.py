"""A child ends with everything it started: when it is told to, at the end of a block, and with us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchsleuth.core.processes.child import Child
from torchsleuth.core.processes.tree import is_alive

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
STARTS_ANOTHER = "sleep 1000 & echo $!; wait"


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 30
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_alive(pid)


def first_number(file: Path) -> int:
    deadline = time.monotonic() + 30
    while (
        not (text := file.read_text() if file.exists() else "").endswith("\n") and time.monotonic() < deadline
    ):
        time.sleep(0.02)
    return int(text)


def test_what_it_started_ends_with_the_block(tmp_path):
    with Child(["sh", "-c", STARTS_ANOTHER], stdout=tmp_path / "out") as child:
        below = first_number(tmp_path / "out")
        assert not child.ended_within(0.1) and child.poll() is None
    assert gone(below) and child.poll() == -signal.SIGKILL


def test_with_a_grace_it_is_asked_first(tmp_path):
    asked = "trap 'echo asked; exit 3' TERM; echo 1; while :; do sleep 0.05; done"
    child = Child(["sh", "-c", asked], stdout=tmp_path / "out")
    first_number(tmp_path / "out")
    child.end(grace=20.0)
    assert child.poll() == 3 and (tmp_path / "out").read_text() == "1\nasked\n"


def test_it_ends_with_us_however_we_end(tmp_path):
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom torchsleuth.core.processes.child import Child\n"
        f"child = Child(['sh', '-c', {STARTS_ANOTHER!r}], stdout=Path(sys.argv[1]))\n"
        "print('started', flush=True)\ntime.sleep(1000)\n"
    )
    ours = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "out")], stdout=subprocess.PIPE)
    assert ours.stdout is not None and ours.stdout.readline() == b"started\n"
    below = first_number(tmp_path / "out")
    os.kill(ours.pid, signal.SIGKILL)
    ours.wait()
    assert gone(below)
