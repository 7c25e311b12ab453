"""Keeps the beginning and the end of a stream of any length in bounded memory; the middle is counted and dropped.

Used for what a trial prints: a gigabyte of it must fill neither memory nor disk, and both ends tell something.
"""

from __future__ import annotations


class BoundedOutput:
    """The first and last `limit // 2` bytes of what it was fed.

    >>> kept = BoundedOutput(4); kept.feed(b"abcdef"); kept.text()
    'ab\\n... 2 bytes left out ...\\nef'
    """

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def feed(self, data: bytes) -> None:
        """Takes the next piece of the stream."""
        self.total += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        # Trimmed only at twice the size, so that the cost per byte stays constant.
        if len(self._tail) > 2 * self._half:
            del self._tail[: len(self._tail) - self._half]

    def text(self) -> str:
        """What was kept, as text."""
        tail = bytes(self._tail[-self._half :]) if self._half else b""
        left_out = self.total - len(self._head) - len(tail)
        gap = f"\n... {left_out} bytes left out ...\n".encode() if left_out else b""
        return (bytes(self._head) + gap + tail).decode("utf-8", errors="replace")
