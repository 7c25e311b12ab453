"""Trials and outcomes as messages between processes: one JSON document per frame, its length before it.

A frame is read only when all of it is there, so a process that dies while it writes leaves nothing half-read.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from typing import Any

from torchsleuth.cases.signature import signature_from_json
from torchsleuth.workers.trial import Outcome, Trial

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


def trial_to_json(trial: Trial) -> dict[str, Any]:
    """A trial as a message: `trial_from_json(trial_to_json(trial)) == trial`."""
    return {
        "graph": trial.graph,
        "facts": dict(trial.facts),
        "expected": trial.expected.to_json(),
        "embedded": trial.embedded,
        "imports": list(trial.imports),
        "store": trial.store,
        "stop_early": trial.stop_early,
    }


def trial_from_json(doc: Mapping[str, Any]) -> Trial:
    """The trial that `trial_to_json` wrote."""
    return Trial(
        doc["graph"],
        doc["facts"],
        signature_from_json(doc["expected"]),
        doc["embedded"],
        tuple(doc["imports"]),
        doc["store"],
        doc["stop_early"],
    )


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    """An outcome as a message: `outcome_from_json(outcome_to_json(Outcome(None, 0.1))).seconds == 0.1`."""
    return {
        "signature": outcome.signature.to_json() if outcome.signature else None,
        "seconds": round(outcome.seconds, 4),
        "error": outcome.error,
        "text": outcome.text,
        "more": dict(outcome.more),
    }


def outcome_from_json(doc: Mapping[str, Any], *, cached: bool = False) -> Outcome:
    """The outcome that `outcome_to_json` wrote."""
    signature = signature_from_json(doc["signature"]) if doc["signature"] else None
    return Outcome(signature, doc["seconds"], doc["error"], doc["text"], cached, doc["more"])
