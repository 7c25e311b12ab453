"""How much of the machine one trial may use before it is ended.

Each phase has its own clock, which starts when the phase does: a slow machine that is still loading inputs has
not hung in the compiler. Every number can be chosen; the ones here are for a machine that is busy with other work.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

# A trial's own memory, where nothing was said: it must leave room for the search and for the user's programs.
SHARE_OF_FREE_MEMORY = 0.8
LEAST_MEMORY = 2 << 30
# Of a hang that was found without a clock.
NO_TIMEOUT = 30.0


@dataclass(frozen=True)
class Limits:
    """What one trial may use; seconds by phase, bytes of memory, bytes of output that are kept.

    `processes` bounds what a trial may start: a compile needs a handful (shell, g++, assembler, linker).

    >>> Limits(compile=20).seconds("compile")
    20
    """

    setup: float = 180.0
    compile: float = 300.0
    run: float = 300.0
    memory: int | None = None
    output: int = 64 << 10
    processes: int = 64

    def seconds(self, phase: str) -> float:
        """The clock of a phase: `Limits().seconds("run")`."""
        return {"compile": self.compile, "run": self.run, "eager": self.run}.get(phase, self.setup)

    def to_json(self) -> dict[str, Any]:
        """As a message to another process."""
        return asdict(self)


def hang_seconds(timeout: object) -> float:
    """The clock under which a hang is told: the one it was caught under, where there was one.

    >>> hang_seconds(20), hang_seconds(None)
    (20.0, 30.0)
    """
    return float(timeout) if isinstance(timeout, (int, float)) and timeout else NO_TIMEOUT


def clock_of_a_hang(limits: Limits, kind: str, timeout: object, room: float = 1.0) -> Limits:
    """The limits under which a failure of this kind is tried.

    >>> clock_of_a_hang(Limits(), "hang", 20).compile
    20.0
    """
    if kind != "hang":
        return limits
    seconds = hang_seconds(timeout) * room
    return replace(limits, compile=seconds, run=seconds)


def within(limits: Limits, deadline: float | None, least: float = 5.0) -> Limits:
    """The limits with no phase longer than there is time until `deadline` (of time.monotonic), but `least` seconds.

    >>> within(Limits(compile=300), time.monotonic() - 1).compile
    5.0
    """
    if deadline is None:
        return limits
    left = max(least, deadline - time.monotonic())
    return replace(
        limits, setup=min(limits.setup, left), compile=min(limits.compile, left), run=min(limits.run, left)
    )


def limits_from_json(doc: Mapping[str, Any]) -> Limits:
    """What `Limits.to_json` wrote: `limits_from_json(Limits().to_json()) == Limits()`."""
    return Limits(**doc)


def fair_memory(workers: int) -> int | None:
    """What each of `workers` trials may take of the memory that is free now; None where that is unknown.

    >>> fair_memory(2) is None or fair_memory(2) >= LEAST_MEMORY
    True
    """
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            free = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        pages = os.sysconf("SC_PHYS_PAGES") if "SC_PHYS_PAGES" in os.sysconf_names else -1
        if pages < 0:
            return None
        free = pages * os.sysconf("SC_PAGE_SIZE") // 2
    return max(LEAST_MEMORY, int(free * SHARE_OF_FREE_MEMORY) // max(1, workers))
