"""Messages between processes: one JSON document per frame, its length before it.

A frame is read only when all of it is there, so a process that dies while it writes leaves nothing half-read.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from typing import Any

_LENGTH = struct.Struct("<I")
# A graph of ten thousand nodes prints as about two megabytes; beyond this something is not ours.
LONGEST_FRAME = 256 << 20


class BrokenFrame(Exception):
    """What came over the wire is not one of our messages."""


def frame(message: Mapping[str, Any]) -> bytes:
    """One message as bytes: `Frames().feed(frame({"a": 1})) == [{"a": 1}]`."""
    body = json.dumps(message).encode()
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Puts the pieces in which messages arrive together again."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """The messages that are complete now that `data` has come."""
        self._held += data
        complete = []
        while len(self._held) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._held)
            if length > LONGEST_FRAME:
                raise BrokenFrame(f"a message of {length} bytes is announced; none of ours is that long")
            end = _LENGTH.size + length
            if len(self._held) < end:
                break
            try:
                complete.append(json.loads(self._held[_LENGTH.size : end]))
            except ValueError as error:
                raise BrokenFrame(f"a message cannot be read ({error})") from error
            del self._held[:end]
        return complete


def write_all(descriptor: int, data: bytes) -> None:
    """Writes all of `data` to a blocking descriptor: `write_all(1, b"x")`."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
