"""A sealed process does what it likes, and nobody notices."""

import mmap
import os
import signal
import socket
import threading

import pytest

from torchsleuth.core.processes.sealed import seal, why_not_sealable

pytestmark = pytest.mark.skipif(why_not_sealable() is not None, reason="needs Linux on a known machine")


def sealed(work):
    """What `work` returns in a sealed fork, as text; the name of the signal where one ended it."""
    answer, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            seal([told])
            os.write(told, repr(work()).encode())
        finally:
            os._exit(0)
    os.close(told)
    _, status = os.waitpid(child, 0)
    text = os.read(answer, 1000).decode()
    os.close(answer)
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else text


@pytest.mark.parametrize(
    "act",
    [
        lambda path: path.write_text("changed"),
        lambda path: path.open("a").close(),
        lambda path: path.unlink(),
        lambda path: path.rename(path.with_suffix(".new")),
        lambda path: path.with_suffix(".folder").mkdir(),
        lambda path: path.chmod(0),
        lambda path: os.truncate(path, 0),
        lambda path: os.kill(os.getppid(), 0),
        lambda path: os.system("true"),
        lambda path: os.fork(),
        lambda path: socket.socket(),
    ],
    ids=[
        "write",
        "append",
        "remove",
        "rename",
        "mkdir",
        "chmod",
        "truncate",
        "kill",
        "system",
        "fork",
        "socket",
    ],
)
def test_what_would_be_seen_outside_ends_it(tmp_path, act):
    path = tmp_path / "file"
    path.write_text("kept")
    before = path.stat()
    assert sealed(lambda: act(path)) == "SIGSYS"
    assert path.read_text() == "kept"
    assert path.stat().st_mode == before.st_mode
    assert os.listdir(tmp_path) == ["file"]


def test_open_files_and_shared_memory_are_not_touched(tmp_path):
    shared = mmap.mmap(-1, 4096)
    shared[0] = 1

    def write():
        log.write("from the fork")
        log.flush()
        shared[0] = 9
        return shared[0]

    with open(tmp_path / "log", "w+") as log:
        log.write("before ")
        log.flush()
        assert sealed(write) == "9"
        log.write("after")
        log.seek(0)
        assert log.read() == "before after"
    assert shared[0] == 1


def test_it_can_read_compute_and_start_threads(tmp_path):
    (tmp_path / "data").write_text("41")

    def work():
        found = []
        thread = threading.Thread(target=lambda: found.append(int((tmp_path / "data").read_text()) + 1))
        thread.start()
        thread.join()
        print("not to be seen")
        return found

    assert sealed(work) == "[42]"
