"""The files of the spool in which collectors write what they see: bounded, and whole even where a process is killed.

Each write is one of the operating system's, so nothing is lost in a crash and threads do not mix. A program that
compiles for hours must not fill the disk: what is kept is what came first. A fork of a process goes on in files of its
own; one that must not be seen writes nothing. Nothing in here ever raises.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from torchsleuth.script_runtime.hiding import hide_in_words

MOST_BYTES = 64 << 20
MOST_LINE = 4 << 20

_silent = False


def silence_this_process() -> None:
    """Nothing more is written by this process: it is a fork that must not be seen."""
    global _silent
    _silent = True


class BoundedFile:
    """A text file that stops growing. Used as `BoundedFile(spool, "torch-trace-{pid}.log", 1 << 20).write(line)`.

    `first_line` and `last_line` say what stands at its beginning, and at its end where it was cut. Nothing is made
    before there is something to write.
    """

    def __init__(
        self,
        spool: str,
        name: str,
        most_bytes: int = MOST_BYTES,
        first_line: Callable[[], str] = str,
        last_line: Callable[[], str] = str,
    ) -> None:
        self.path = os.path.join(spool, name)
        self.most_bytes = most_bytes
        self.first_line, self.last_line = first_line, last_line
        self.written, self.cut = 0, False
        self._handle: int | None = None
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._start_anew)

    def _start_anew(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
        self.written, self.cut, self._handle = 0, False, None
        self._lock = threading.Lock()

    def write(self, text: str) -> None:
        """Some whole lines."""
        if self.cut or _silent:
            return
        with self._lock, contextlib.suppress(OSError):
            if self._handle is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
                self._handle = os.open(self.path.format(pid=os.getpid()), flags, 0o600)
                os.write(self._handle, self.first_line().encode())
            data = text.encode("utf-8", "backslashreplace")
            if self.written + len(data) > self.most_bytes:
                self.cut, data = True, self.last_line().encode()
            os.write(self._handle, data)
            self.written += len(data)


class Events(Protocol):
    """Where a collector writes: a file of the spool, or a list in memory."""

    def write(self, kind: str, **fields: Any) -> None: ...


class EventWriter:
    """Events of one process as JSON lines, `{"kind": ..., "at": seconds since 1970, ...}`, the first of which is the
    process itself. Used as `events.write("break", line=12)`."""

    def __init__(self, spool: str, most_bytes: int = MOST_BYTES) -> None:
        self.file = BoundedFile(spool, "observed-{pid}.jsonl", most_bytes, _this_process, self._cut)

    def write(self, kind: str, **fields: Any) -> None:
        """One event; what JSON does not know is written as text."""
        if not self.file.cut:
            with contextlib.suppress(ValueError, TypeError, RecursionError):
                self.file.write(_line(kind, fields))

    def _cut(self) -> str:
        return _line("cut", {"bytes": self.file.written})


def _line(kind: str, fields: dict[str, Any]) -> str:
    at = round(time.time(), 6)
    line = json.dumps({"kind": kind, "at": at, **fields}, default=str)
    if len(line) >= MOST_LINE:
        line = json.dumps({"kind": "too_long", "at": at, "of": kind, "bytes": len(line)})
    return line + "\n"


def _this_process() -> str:
    rank = os.environ.get("RANK", "")
    facts = {"pid": os.getpid(), "parent": os.getppid(), "argv": hide_in_words(sys.argv)}
    return _line("process", {**facts, "rank": int(rank) if rank.isdigit() else None})


@contextlib.contextmanager
def harmless(events: Events) -> Iterator[None]:
    """What goes wrong in a collector is an event, and the program goes on: `with harmless(events): ...`."""
    try:
        yield
    except Exception as error:
        events.write("trouble", error=f"{type(error).__name__}: {error}")
