"""A process that we start, and what is to go when this one ends, however it ends.

A `Child` runs in a session of its own, so that everything it starts ends with it. An end of ours that can be seen
coming is handled by `with`. For kill -9 there is a cleaner: a small process that is told which folders and children
are there, waits for its pipe to close, ends the children and removes the folders. Should it be killed as well, the
folders say whose they were, and the next `run` sweeps them up.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol, Self

from torchsleuth.core.processes.tree import descendants_of, end_all, kill_group, started_at, this_process
from torchsleuth.core.protocol.codec import to_json

PREFIX, UNNAMED = "torchsleuth-", ".torchsleuth-"
OWNER = "owner.json"
Output = Path | IO[bytes] | int | None

# Groups come first, so that nothing writes into a folder that is removed. A number that stands for another process by
# now is left alone.
_CLEANER = """
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


class _Cleaner:
    """What the cleaner of this process was told; a fork starts with none."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.numbers = 0
        self.folder: Path | None = None
        try:
            self.process: subprocess.Popen[bytes] | None = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _CLEANER],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        except OSError:  # no more processes: then only an end that is seen coming leaves nothing
            self.process = None
        atexit.register(self.close)

    def add(self, kind: str, what: str) -> int:
        self.numbers += 1
        self.tell(f"{self.numbers} {kind} {what}\n")
        return self.numbers

    def tell(self, line: str) -> None:
        """One write, short enough to arrive whole also where several threads tell something."""
        if self.process is not None and self.process.stdin is not None:
            with contextlib.suppress(OSError):
                os.write(self.process.stdin.fileno(), line.encode("utf-8", "surrogateescape"))

    def close(self) -> None:
        if self.pid != os.getpid():
            return
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()


_here: list[_Cleaner] = []


def _cleaner() -> _Cleaner:
    if not _here or _here[0].pid != os.getpid():
        _here[:] = [_Cleaner()]
    return _here[0]


def scratch() -> Path:
    """The folder for everything temporary of this process: `tempfile.mkdtemp(dir=scratch())`."""
    cleaner = _cleaner()
    if cleaner.folder is None or not cleaner.folder.is_dir():
        # It gets its name once it says whose it is: what keeps the other one was killed in between.
        unnamed = Path(tempfile.mkdtemp(prefix=UNNAMED))
        (unnamed / OWNER).write_text(json.dumps(to_json(this_process())), encoding="utf-8")
        cleaner.folder = unnamed.rename(unnamed.with_name(PREFIX + unnamed.name.removeprefix(UNNAMED)))
        cleaner.add("folder", str(cleaner.folder))
    return cleaner.folder


def goes_with_us(folder: Path) -> Callable[[], None]:
    """Has a folder removed should this process be killed; returns what to call once it is gone."""
    cleaner = _cleaner()
    number = cleaner.add("folder", str(folder))
    return lambda: cleaner.tell(f"{number} gone -\n")


class Closed:
    """What is closed at the end of its `with` block, however that ends."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Process(Protocol):
    """A process as whoever waits for it sees it, whether it was started or forked (`processes.prepared`)."""

    @property
    def pid(self) -> int | None: ...

    def poll(self) -> int | None:
        """Its exit status once it has ended, negative where a signal ended it."""

    def wait(self, timeout: float | None = None) -> int:
        """How it ended; raises `subprocess.TimeoutExpired` where it takes longer."""

    def end(self) -> None:
        """Ends it and everything it started, and waits until it is gone."""


class Child:
    """A process that we started: `with Child(["make"], stdout=Path("log")) as child: child.wait(60)`.

    Output goes to the end of a file that is named, to what `subprocess` takes, or where ours goes. Only the descriptors
    that are `handed` are open in it. Should we be killed, it ends, too, unless it is not `tied`: then it notices by
    itself. One that is not `apart` is a person's own: it stays in their session, with all descriptors that their shell
    opened, reads what they type, and goes on if we are killed.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: int | None = subprocess.DEVNULL,
        stdout: Output = None,
        stderr: Output = None,
        handed: Sequence[int] = (),
        tied: bool = True,
        apart: bool = True,
    ) -> None:
        self.apart = apart
        # Started first: between a child's start and the cleaner's knowing of it lies no more than one write.
        cleaner = _cleaner() if tied and apart else None
        with contextlib.ExitStack() as opened:
            streams = [
                opened.enter_context(open(each, "ab")) if isinstance(each, Path) else each
                for each in (stdout, stderr)
            ]
            self._process = subprocess.Popen(
                command,
                cwd=cwd,
                env=environment,
                stdin=stdin if apart else None,
                stdout=streams[0],
                stderr=streams[1],
                start_new_session=apart,
                pass_fds=tuple(handed),
                close_fds=apart,
            )
        self.pid: int = self._process.pid
        self.input, self.output = self._process.stdin, self._process.stdout
        self._over: Callable[[], None] = lambda: None
        if cleaner is not None:
            number = cleaner.add("group", f"{self.pid} {started_at(self.pid)}")
            tell = cleaner.tell
            self._over = lambda: tell(f"{number} gone -\n")

    def poll(self) -> int | None:
        """Its exit status once it has ended, negative where a signal ended it."""
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int:
        """How it ended; raises `subprocess.TimeoutExpired` where it takes longer."""
        return self._process.wait(timeout)

    def reaped_by_us(self) -> int:
        """Its number, of a child whose end is not asked for here: a server waits for all of its processes at once."""
        self._process.returncode = 0
        return self.pid

    def ended_within(self, seconds: float) -> bool:
        """Waits for its end so long; whether that came."""
        try:
            self.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def send(self, number: int) -> None:
        """Sends it a signal, where it has not ended."""
        self._process.send_signal(number)

    def end(self, grace: float = 0.0, also: Iterable[int] = ()) -> None:
        """Ends it and everything it started, and what is to end `also`; with a `grace`, by asking first."""
        if grace:
            alive = [self.pid, *descendants_of(self.pid)] if self.poll() is None else []
            end_all([*alive, *also], grace)
        if self.apart:
            kill_group(self.pid)  # a session of its own cannot be anyone else's
        self.wait()
        self._over()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.end()
