"""Reads what the collectors of a run wrote, also when its processes were killed in the middle of a line."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchsleuth.core.cases.door import NotRead, read_inside

_FILE = re.compile(r"observed-(\d{1,10})\.jsonl")
# What the writer allows itself, and a last line.
MOST_BYTES = 80 << 20


@dataclass(frozen=True)
class Event:
    """One thing that a collector saw in the process `pid`: `event.fields["line"]`."""

    kind: str
    at: float
    pid: int
    fields: Mapping[str, Any] = field(default_factory=dict)


def read_events(spool: Path) -> tuple[Event, ...]:
    """All events of a run, in the order in which they happened; what is no event is left out.

    >>> read_events(Path("/no/such/folder"))
    ()
    """
    found: list[Event] = []
    for path in sorted(spool.glob("observed-*.jsonl")):
        match = _FILE.fullmatch(path.name)
        if match is not None:
            with contextlib.suppress(NotRead):
                found += parse_events(
                    read_inside(spool, path.name, MOST_BYTES).splitlines(), pid=int(match[1])
                )
    return tuple(sorted(found, key=lambda event: event.at))


def parse_events(lines: Iterable[bytes | str], pid: int = 0) -> list[Event]:
    """The events in these lines.

    >>> parse_events(['{"kind": "frame", "at": 1.5, "function": "f"}', '{"kind": "fra'])
    [Event(kind='frame', at=1.5, pid=0, fields={'function': 'f'})]
    """
    found = []
    for line in lines:
        try:
            given = json.loads(line)
            kind, at = str(given.pop("kind")), float(given.pop("at"))
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            continue
        found.append(Event(kind, at, pid, given))
    return found


def was_cut(events: Iterable[Event]) -> bool:
    """Whether a process had more to say than is kept."""
    return any(event.kind in ("cut", "too_long") for event in events)
