"""A text file of the spool that stops growing: what is kept is what came first."""

from __future__ import annotations

import contextlib
import os
import threading

from torchsleuth.watched.observe.events import is_silent


class BoundedFile:
    """Used as `BoundedFile(spool, "torch-trace-{pid}.log", 1 << 20).write(line)`. Never raises.

    `last_line` is what stands at the end of one that was cut. A fork of the process goes on in a file of its own;
    nothing is made before there is something to write.
    """

    def __init__(self, spool: str, name: str, most_bytes: int, last_line: str = "") -> None:
        self.path = os.path.join(spool, name)
        self.most_bytes = most_bytes
        self.last_line = last_line
        self._handle: int | None = None
        self._written, self._cut = 0, False
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._start_anew)

    def write(self, text: str) -> None:
        """Some whole lines."""
        if self._cut or is_silent():
            return
        data = text.encode("utf-8", "backslashreplace")
        with self._lock, contextlib.suppress(OSError):
            if self._handle is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
                self._handle = os.open(self.path.format(pid=os.getpid()), flags, 0o600)
            if self._written + len(data) > self.most_bytes:
                self._cut, data = True, self.last_line.encode()
            os.write(self._handle, data)
            self._written += len(data)

    def _start_anew(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
        self._handle, self._written, self._cut = None, 0, False
        self._lock = threading.Lock()
