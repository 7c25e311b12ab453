"""Whatever ends the front, the programs and scripts that it started end as well, and its temporary folders go."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from program_runs import environment, write_program
from torchsleuth.core.processes.tree import this_process
from torchsleuth.core.protocol.codec import to_json
from torchsleuth.front.supervise.leftovers import sweep_scratch

# A script as torchsleuth writes them, or a program, that never ends, and something that it started.
HANGS = """
    import os, subprocess, sys, time

    EXPECTED = {"kind": "hang", "phase": "run"}
    below = subprocess.Popen(["sleep", "600"])
    with open("pids.part", "w") as file:
        file.write(f"{os.getpid()} {below.pid}")
    os.rename("pids.part", "pids")
    time.sleep(600)
"""
WATCHES = ["verify", "triage"]


def until(what, seconds):
    deadline = time.monotonic() + seconds
    while not what() and time.monotonic() < deadline:
        time.sleep(0.05)
    return what()


def runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("verb", WATCHES)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL])
def test_a_front_that_is_ended_leaves_nothing(tmp_path, verb, number):
    write_program(tmp_path, HANGS)
    (tmp_path / "tmp").mkdir()
    env = {**environment(tmp_path), "TMPDIR": str(tmp_path / "tmp"), "TORCHSLEUTH_CASES": "cases"}
    command = [sys.executable, "-m", "torchsleuth", verb, "program.py"]
    with open(tmp_path / "said", "w") as said:
        front = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=said, stderr=said)
    assert until((tmp_path / "pids").exists, 60), (tmp_path / "said").read_text()
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    front.send_signal(number)
    status = front.wait(60)
    assert status == (-9 if number == signal.SIGKILL else 128 + number), (tmp_path / "said").read_text()
    try:
        assert until(lambda: not any(map(runs, pids)), 20)
        assert until(lambda: not os.listdir(tmp_path / "tmp"), 20), os.listdir(tmp_path / "tmp")
    finally:
        for pid in filter(runs, pids):
            os.kill(pid, signal.SIGKILL)


def test_the_folder_of_a_dead_torchsleuth_is_swept_and_nobody_elses(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    me = to_json(this_process())
    owners = {"dead": {**me, "started": 1}, "alive": me, "elsewhere": {**me, "started": 1, "host": "another"}}
    for name, owner in owners.items():
        (tmp_path / f"torchsleuth-{name}").mkdir()
        (tmp_path / f"torchsleuth-{name}" / "owner.json").write_text(json.dumps(owner))
    (tmp_path / "torchsleuth-unknown").mkdir()
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "owner.json").write_text(json.dumps(owners["dead"]))
    (tmp_path / "torchsleuth-link").symlink_to(tmp_path / "victim")
    # Its process was killed before it had said whose the folder is; another has just been made.
    (tmp_path / ".torchsleuth-killed").mkdir()
    os.utime(tmp_path / ".torchsleuth-killed", (1, 1))
    (tmp_path / ".torchsleuth-link").symlink_to(tmp_path / "victim")
    (tmp_path / ".torchsleuth-new").mkdir()
    sweep_scratch()
    left = sorted(path.name for path in tmp_path.iterdir())
    names = [
        ".torchsleuth-link",
        ".torchsleuth-new",
        "torchsleuth-alive",
        "torchsleuth-elsewhere",
        "torchsleuth-link",
        "torchsleuth-unknown",
        "victim",
    ]
    assert left == names
