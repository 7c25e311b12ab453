"""Compiles of a run that failed or did not end: `explain` and its like tell of them, `run` finds out why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torchsleuth.front.observe.events import Event


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

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def failed_compiles(events: Iterable[Event]) -> tuple[FailedCompile, ...]:
    """Each function and error once, in the order of the first time; a graph break is no failure.

    >>> begun = Event("frame_begin", 0.0, 7, {"frame": 0, "function": "f", "file": "net.py", "line": 3})
    >>> [str(each) for each in failed_compiles([begun])]
    ['compile of `f` (net.py:3) was under way at the end']
    """
    raised: Counter[tuple[str, str, int, str]] = Counter()
    under_way: dict[tuple[int, Any], Event] = {}
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
