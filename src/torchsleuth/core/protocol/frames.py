"""Messages between processes: dataclasses, each in a frame of its own that begins with its length. A frame is read only
when all of it is there, so a process that dies while it writes leaves nothing half-read.

And the messages of the simplest of them: what is asked of a process from which others are forked (`child.server`), and
what it says of them.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from torchsleuth.core.protocol.codec import from_json, to_json

M = TypeVar("M")

_LENGTH = struct.Struct("<I")
# A graph of ten thousand nodes prints as about two megabytes; beyond this something is not ours.
LONGEST_FRAME = 256 << 20


class BrokenFrame(Exception):
    """What came over the wire is not one of our messages."""


def frame(message: object) -> bytes:
    """One message as bytes: `Frames(Done).feed(frame(Done(case="3f9a0000")))[0].case`."""
    body = json.dumps([type(message).__name__, to_json(message)]).encode()
    return _LENGTH.pack(len(body)) + body


class Frames(Generic[M]):
    """Puts the pieces in which messages of these kinds arrive together again."""

    def __init__(self, *kinds: type[M]) -> None:
        self._kinds = {kind.__name__: kind for kind in kinds}
        self._held = bytearray()

    def feed(self, data: bytes) -> list[M]:
        """The messages that are complete now that `data` has come."""
        self._held += data
        complete: list[M] = []
        while len(self._held) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._held)
            if length > LONGEST_FRAME:
                raise BrokenFrame(f"a message of {length} bytes is announced; none of ours is that long")
            end = _LENGTH.size + length
            if len(self._held) < end:
                break
            try:
                kind, document = json.loads(self._held[_LENGTH.size : end])
                read = getattr(self._kinds[kind], "from_json", None)
                complete.append(read(document) if read else from_json(self._kinds[kind], document))
            except (ValueError, TypeError, LookupError) as error:
                raise BrokenFrame(f"a message cannot be read ({error})") from error
            del self._held[:end]
        return complete


def write_all(descriptor: int, data: bytes) -> None:
    """Writes all of `data` to a blocking descriptor: `write_all(1, b"x")`."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


@dataclass(frozen=True)
class Join:
    """Another client may give orders, too, over the socket that comes along."""

    descriptors: int = 1


@dataclass(frozen=True)
class Become:
    """A process is to be forked that goes on as a script, or as a function of ours ("package.module:function").

    The function is called with `--control=N` for each of the `descriptors` that come along, and the arguments. Of the
    environment, None takes a variable away.
    """

    number: int
    stdout: str
    stderr: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str | None] = field(default_factory=dict)
    script: str = ""
    call: str = ""
    descriptors: int = 0


@dataclass(frozen=True)
class Kill:
    """The process of that number is to end, with everything in its session."""

    number: int


@dataclass(frozen=True)
class Forked:
    """The process of that number is there."""

    number: int
    pid: int


@dataclass(frozen=True)
class Ended:
    """The process of that number has ended with a status, as `subprocess` reports it."""

    number: int
    code: int
