"""Compiles of a run that failed: `explain` and its like tell of them, `torchsleuth run` finds out why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torchsleuth.explain.events import Event


@dataclass(frozen=True)
class FailedCompile:
    """A function whose compile raised `error`, and how often.

    >>> str(FailedCompile("Net.forward", "net.py", 12, "IndexError: list index out of range", 2))
    'compile of `Net.forward` (net.py:12) failed, 2 times: IndexError: list index out of range'
    """

    function: str
    file: str
    line: int
    error: str
    times: int = 1

    def __str__(self) -> str:
        often = "" if self.times == 1 else f", {self.times} times"
        return (
            f"compile of `{self.function}` ({Path(self.file).name}:{self.line}) failed{often}: {self.error}"
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def failed_compiles(events: Iterable[Event]) -> tuple[FailedCompile, ...]:
    """Each function and error once, in the order of the first time; a graph break is no failure.

    >>> failed_compiles([])
    ()
    """
    counts: dict[tuple[str, str, int, str], int] = {}
    for event in events:
        if event.kind == "frame" and event.fields.get("failed"):
            given = event.fields
            line = given["line"] if isinstance(given.get("line"), int) else 0
            key = (str(given.get("function")), str(given.get("file")), line, str(given["failed"]))
            counts[key] = counts.get(key, 0) + 1
    return tuple(FailedCompile(*key, times) for key, times in counts.items())
