"""What the collectors of a run wrote, read as events, also when its processes were killed in the middle of a line.

And what every reader of events asks of them: which compiles failed, and which of several compiles with one id is meant.
"""

from __future__ import annotations

import contextlib
import functools
import html
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from torchsleuth.core.cases.door import NotRead, read_inside
from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.protocol.codec import Document

Rest = ParamSpec("Rest")
Found = TypeVar("Found")

_FILE = re.compile(r"observed-(\d{1,10})\.jsonl")
# What the writer allows itself, and a last line.
MOST_BYTES = 80 << 20


# What a collector wrote, as JSON has it: read for what is needed, and checked where it is.
Facts = Document


@dataclass(frozen=True)
class Event:
    """One thing that a collector saw in the process `pid`: `event.fields["line"]`."""

    kind: str
    at: float
    pid: int
    fields: Facts = field(default_factory=dict)


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


class DamagedEvents(SleuthError):
    """What the collectors wrote has lines that no collector writes: a disk that lost something."""


def of_events(
    read: Callable[Concatenate[Sequence[Event], Rest], Found],
) -> Callable[Concatenate[Sequence[Event], Rest], Found]:
    """A function that makes something of events says `DamagedEvents` where one lacks what its kind always has."""

    @functools.wraps(read)
    def reading(events: Sequence[Event], /, *args: Rest.args, **kwargs: Rest.kwargs) -> Found:
        try:
            return read(events, *args, **kwargs)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as why:
            raise DamagedEvents(
                f"what the processes of this run left cannot be read ({type(why).__name__}: {why}); run it again"
            ) from why

    return reading


class Shown:
    """What is printed for a person: a notebook shows the same text, and `repr` is its first line.

    >>> class Two(Shown):
    ...     __str__ = lambda self: "2 breaks\\n1. a.py:3"
    >>> Two(), Two()._repr_html_()
    (<Two: 2 breaks>, '<pre>2 breaks\\n1. a.py:3</pre>')
    """

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {str(self).partition(chr(10))[0]}>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def was_cut(events: Iterable[Event]) -> bool:
    """Whether a process had more to say than is kept."""
    return any(event.kind in ("cut", "too_long") for event in events)


def counted(number: int, thing: str) -> str:
    """The number with the word in its singular or plural.

    >>> counted(1, "graph"), counted(0, "graph")
    ('1 graph', '0 graphs')
    """
    return f"{number} {thing}{'' if number == 1 else 's'}"


# The step that is the compile of one frame.
FRAME_STEP = "dynamo"


class ReusedIds:
    """Looks at events in their order; what comes after a frame's compile, such as its backward, belongs to the last.

    >>> ids = ReusedIds()
    >>> for _ in range(2): ids.see(Event("frame", 1.0, 7, {"id": "0/0"}))
    >>> ids.again(7, "0/0"), ids.again(7, "1/0")
    (1, 0)
    """

    def __init__(self) -> None:
        self._ended: Counter[tuple[int, str]] = Counter()
        self._under_way: set[tuple[int, str]] = set()

    def see(self, event: Event) -> None:
        """One event; a frame's compile begins with its step or its first function, and ends with `frame`."""
        given = event.fields
        if event.kind == "frame":
            key = (event.pid, str(given.get("id")))
            self._ended[key] += 1
            self._under_way.discard(key)
        elif (event.kind == "trace_enter" and given.get("parent") is None) or (
            event.kind == "step_begin" and given.get("name") == FRAME_STEP
        ):
            self._under_way.add((event.pid, str(given.get("graph"))))
        elif event.kind == "frame_begin":
            self._under_way.add((event.pid, str(given.get("id"))))

    def again(self, pid: int, graph: str) -> int:
        """How often this id was used before the compile that is under way, or was the last."""
        key = (pid, graph)
        return self._ended[key] if key in self._under_way else max(0, self._ended[key] - 1)


@dataclass(frozen=True)
class FailedCompile:
    """A function whose compile raised `error`, and how often; without an error the program ended in the middle of it.

    >>> str(FailedCompile("Net.forward", "net.py", 12, "IndexError: list index out of range", 2))
    'compile of `Net.forward` (net.py:12) failed, 2 times: IndexError: list index out of range'
    """

    function: str
    file: str
    line: int
    error: str | None
    times: int = 1

    def __str__(self) -> str:
        whose = f"compile of `{self.function}` ({Path(self.file).name}:{self.line})"
        often = "" if self.times == 1 else f", {self.times} times"
        return f"{whose} {f'failed{often}: {self.error}' if self.error else 'was under way at the end'}"

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def failed_compiles(events: Iterable[Event]) -> tuple[FailedCompile, ...]:
    """Each function and error once, in the order of the first time; a graph break is no failure.

    >>> begun = Event("frame_begin", 0.0, 7, {"frame": 0, "function": "f", "file": "net.py", "line": 3})
    >>> [str(each) for each in failed_compiles([begun])]
    ['compile of `f` (net.py:3) was under way at the end']
    """
    raised: Counter[tuple[str, str, int, str]] = Counter()
    under_way: dict[tuple[int, object], Event] = {}
    for event in events:
        key = (event.pid, event.fields.get("frame"))
        if event.kind == "frame_begin":
            under_way[key] = event
        elif event.kind == "frame":
            under_way.pop(key, None)
            if event.fields.get("failed"):
                raised[*_whose(event), str(event.fields["failed"])] += 1
    return (
        *(FailedCompile(*key, times) for key, times in raised.items()),
        *(FailedCompile(*_whose(event), None) for event in under_way.values()),
    )


def _whose(event: Event) -> tuple[str, str, int]:
    function, file, line = (event.fields.get(name) for name in ("function", "file", "line"))
    return str(function), str(file), line if isinstance(line, int) else 0
