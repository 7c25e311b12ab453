"""What is to go when this process ends, however it ends: folders of its own, and the programs that it started.

An end that can be seen coming is handled by `with`. For kill -9 there is an executor: a small process that is told
what is there, waits for its pipe to close, ends the programs and removes the folders. Should it be killed as well,
the folders say whose they were, and the next `run` sweeps them up.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from torchsleuth.core.processes.tree import started_at, this_process
from torchsleuth.core.protocol.codec import to_json

PREFIX = "torchsleuth-"
OWNER = "owner.json"

# Groups come first, so that nothing writes into a folder that is removed. A number that stands for another process by
# now is left alone.
_EXECUTOR = """
import os, shutil, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
left = {}
for line in sys.stdin:
    number, kind, what = line.rstrip("\\n").split(" ", 2)
    left.pop(number, None) if kind == "gone" else left.update({number: (kind, what)})
def started(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return None
for kind, what in left.values():
    if kind == "group":
        leader, began = what.split()
        if started(leader) in (None, began):
            try:
                os.killpg(int(leader), signal.SIGKILL)
            except OSError:
                pass
folders = [what for kind, what in left.values() if kind == "folder"]
until = time.monotonic() + 20
while folders and time.monotonic() < until:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    folders = [folder for folder in folders if os.path.lexists(folder)]
    time.sleep(0.1)
"""


class _Will:
    """What the executor of this process knows; a fork starts with none."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.numbers = 0
        self.folder: Path | None = None
        try:
            self.executor: subprocess.Popen[bytes] | None = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _EXECUTOR],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        except OSError:  # no more processes: then only an end that is seen coming leaves nothing
            self.executor = None
        atexit.register(self.close)

    def add(self, kind: str, what: str) -> int:
        self.numbers += 1
        self.tell(f"{self.numbers} {kind} {what}\n")
        return self.numbers

    def tell(self, line: str) -> None:
        """One write, short enough to arrive whole also where several threads tell something."""
        if self.executor is not None and self.executor.stdin is not None:
            with contextlib.suppress(OSError):
                os.write(self.executor.stdin.fileno(), line.encode("utf-8", "surrogateescape"))

    def close(self) -> None:
        if self.pid != os.getpid():
            return
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        if self.executor is not None and self.executor.stdin is not None:
            self.executor.stdin.close()


_here: list[_Will] = []


def _will() -> _Will:
    if not _here or _here[0].pid != os.getpid():
        _here[:] = [_Will()]
    return _here[0]


def scratch() -> Path:
    """The folder for everything temporary of this process: `tempfile.mkdtemp(dir=scratch())`."""
    will = _will()
    if will.folder is None or not will.folder.is_dir():
        will.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        will.add("folder", str(will.folder))
        (will.folder / OWNER).write_text(json.dumps(to_json(this_process())), encoding="utf-8")
    return will.folder


def goes_with_us(folder: Path) -> Callable[[], None]:
    """Has a folder removed should this process be killed; returns what to call once it is gone."""
    will = _will()
    number = will.add("folder", str(folder))
    return lambda: will.tell(f"{number} gone -\n")


def ends_with_us(leader: int) -> Callable[[], None]:
    """Has the process group of `leader` killed should this process be; returns what to call once it has ended.

    Used as `over = ends_with_us(child.pid)`, where the child was started in a session of its own, and `over()`.
    """
    will = _will()
    number = will.add("group", f"{leader} {started_at(leader)}")
    return lambda: will.tell(f"{number} gone -\n")
