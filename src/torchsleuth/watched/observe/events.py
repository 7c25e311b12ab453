"""The one writer of what collectors see: JSON lines in a file per process, bounded, whole even where it is killed.

A line is {"kind": ..., "at": seconds since 1970, ...}; the first of a file is the process itself. Each is one write of
the operating system's, so nothing is lost in a crash and threads do not mix.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from torchsleuth.script_runtime.hiding import hide_in_words

# A program that recompiles for hours must not fill the disk; what is kept is what came first.
MOST_BYTES = 64 << 20
MOST_LINE = 4 << 20

_silent = False


def silence_this_process() -> None:
    """Nothing more is written by this process: it is a fork that must not be seen."""
    global _silent
    _silent = True


def is_silent() -> bool:
    """Whether this process is one that must not be seen."""
    return _silent


@contextlib.contextmanager
def harmless(events: Any) -> Iterator[None]:
    """What goes wrong in a collector is an event, and the program goes on: `with harmless(events): ...`."""
    try:
        yield
    except Exception as error:
        events.write("trouble", error=f"{type(error).__name__}: {error}")


class EventWriter:
    """Where one process writes what its collectors see; a fork of it goes on in a file of its own.

    Used as `events.write("break", line=12)`. Never raises.
    """

    def __init__(self, spool: str, most_bytes: int = MOST_BYTES) -> None:
        self.spool = spool
        self.most_bytes = most_bytes
        self.written = 0
        self.cut = False
        self.pid = 0
        self._handle: int | None = None
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._start_anew)

    def write(self, kind: str, **fields: Any) -> None:
        """One event; what JSON does not know is written as text."""
        if _silent or self.cut:
            return
        with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
            line = self._line(kind, fields)
            with self._lock:
                if self.pid == 0:
                    self._open()
                if self._handle is None:
                    return
                if self.written + len(line) > self.most_bytes:
                    self.cut = True
                    line = self._line("cut", {"bytes": self.written})
                os.write(self._handle, line)
                self.written += len(line)

    def _line(self, kind: str, fields: dict[str, Any]) -> bytes:
        event = {"kind": kind, "at": round(time.time(), 6), **fields}
        line = json.dumps(event, default=str).encode() + b"\n"
        if len(line) > MOST_LINE:
            told = {"kind": "too_long", "at": event["at"], "of": kind, "bytes": len(line)}
            line = json.dumps(told).encode() + b"\n"
        return line

    def _open(self) -> None:
        self.pid = os.getpid()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._handle = os.open(os.path.join(self.spool, f"observed-{self.pid}.jsonl"), flags, 0o600)
        rank = os.environ.get("RANK", "")
        facts = {"pid": self.pid, "parent": os.getppid(), "argv": hide_in_words(sys.argv)}
        os.write(
            self._handle,
            self._line("process", {**facts, "rank": int(rank) if rank.isdigit() else None}),
        )

    def _start_anew(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
        self.pid, self.written, self.cut, self._handle = 0, 0, False, None
        self._lock = threading.Lock()
