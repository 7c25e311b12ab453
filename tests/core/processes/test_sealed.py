"""A sealed process does what it likes, and nobody notices."""

import mmap
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading

import pytest

from torchsleuth.core.processes.sealed import confined, seal, why_not_confinable, why_not_sealable

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


CONFINED = """
    import os, socket, subprocess, sys, tempfile
    def refused(act):
        try:
            act()
        except (OSError, subprocess.CalledProcessError):
            return True
        return False
    other = sys.argv[1]
    print([refused(act) for act in (
        lambda: open(other, "a"), lambda: os.truncate(other, 0), lambda: os.unlink(other), lambda: os.rename(other, other + "2"),
        lambda: os.mkdir(other + "3"), lambda: os.symlink("/", other + "4"), lambda: os.kill(os.getppid(), 0),
        lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM), lambda: socket.socket(socket.AF_INET6),
        lambda: subprocess.run(["touch", other + "5"], check=True, stderr=subprocess.DEVNULL),
    )])
    print([refused(act) for act in (
        lambda: open(other), lambda: tempfile.NamedTemporaryFile().close(), lambda: open("/dev/null", "w"), socket.socketpair,
        lambda: subprocess.run(["true"], check=True),
    )])
"""


@pytest.mark.skipif(why_not_confinable() is not None, reason="needs a kernel with Landlock")
def test_a_confined_program_reads_everything_and_changes_nothing_outside_of_its_folder(tmp_path):
    (tmp_path / "own").mkdir()
    other = tmp_path / "other"
    other.write_text("as it was")
    command = [sys.executable, "-c", textwrap.dedent(CONFINED), str(other)]
    ran = subprocess.run(
        confined(command, str(tmp_path / "own")), capture_output=True, text=True, cwd=tmp_path
    )
    assert ran.stdout.splitlines() == [str([True] * 10), str([False] * 5)], ran.stderr
    assert (
        sorted(path.name for path in tmp_path.iterdir()) == ["other", "own"]
        and other.read_text() == "as it was"
    )


ASIDE = """
    import os, pathlib, sys
    from torchsleuth.core.processes.sealed import write_aside
    write_aside(sys.argv[1])
    open("first", "w").close()
    os.makedirs("out/logs", exist_ok=True)
    os.makedirs("out/logs", exist_ok=True)
    with open("out/logs/log.txt", "w") as file:
        file.write("one")
    with open("other", "a") as file:
        file.write(", and more")
    pathlib.Path("new").write_text("two")
    os.replace("new", "newer")
    print(open("out/logs/log.txt").read(), open("other").read(), pathlib.Path("newer").read_text())
    try:
        open("nowhere/file", "w")
    except FileNotFoundError:
        print("as ever")
"""


@pytest.mark.skipif(why_not_confinable() is not None, reason="needs a kernel with Landlock")
def test_what_a_confined_program_would_write_elsewhere_it_finds_again_and_nobody_else(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "other").write_text("as it was")
    own = str(tmp_path / "own")
    command = [sys.executable, "-c", textwrap.dedent(ASIDE), own]
    ran = subprocess.run(confined(command, own), capture_output=True, text=True, cwd=tmp_path)
    assert ran.stdout.splitlines() == ["one as it was, and more two", "as ever"], ran.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "own"]
    assert (tmp_path / "other").read_text() == "as it was"
