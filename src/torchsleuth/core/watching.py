"""What whoever starts a program asks of the watch in it: one frozen value, and what collectors are told beside it.

All of it travels in environment variables, so that processes that the program starts are watched as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field

WATCH_VARIABLE = "TORCHSLEUTH_WATCH"
# Names the collectors of `watched/observe/` that are switched on, comma separated.
OBSERVE_VARIABLE = "TORCHSLEUTH_OBSERVE"
# Those of `run --explain`.
COLLECTORS = ("breaks", "recompiles", "times", "trace")
# Set where the trace is to have each bytecode instruction.
INSTRUCTIONS_VARIABLE = "TORCHSLEUTH_TRACE_INSTRUCTIONS"
# The kinds of artefacts that the debug folder is to hold, comma separated.
ARTEFACTS_VARIABLE = "TORCHSLEUTH_ARTEFACTS"
TORCH_TRACE = "torch-trace"
# The parts of the compiler whose log is kept, comma separated.
LOG_VARIABLE = "TORCHSLEUTH_LOG"

# Not used by any library we know of; it only makes the stacks of all threads be written to a file.
STACKS_SIGNAL = int(signal.SIGRTMAX) - 7 if hasattr(signal, "SIGRTMAX") else int(signal.SIGUSR2)


# Lies in the folder of a further run once that has ended.
AT_END = "ended"


@dataclass(frozen=True)
class Again:
    """A further run of a program, in which whole calls are written down: in eager and as captured in turn. `folders`
    has one for each of these runs, this one's the last; after so many `calls` it ends; the program took so much memory.

    >>> Again(("first",), 3).in_eager, Again(("first", "second"), 3).in_eager
    (True, False)
    """

    folders: tuple[str, ...]
    calls: int
    memory: tuple[tuple[str, int], ...] = ()

    @property
    def in_eager(self) -> bool:
        return len(self.folders) % 2 == 1


@dataclass(frozen=True)
class Settings:
    """How to watch. `spool` is the folder of this run, where each process keeps its own records; `keep` are the graphs,
    by the hash of their record, and the number of the call before which everything that it sees is kept;
    `synchronised` waits for the device after every compiled call, so that its errors show in the call that made them;
    `again` where the program runs once more for its whole calls to be compared;
    `check_budget` are the seconds that comparing with eager may take; without `watches_failures` nothing is watched
    for failures, and only what collectors are asked for is done.

    >>> Settings(spool="/tmp/spool", level=4).checks_accuracy
    True
    """

    spool: str
    level: int = 2
    after: str = "auto"
    only: str | None = None
    keep_going: bool = False
    check_every: int = 0
    check_budget: float | None = None
    keep: tuple[tuple[str, int], ...] = ()
    synchronised: bool = False
    watches_failures: bool = True
    again: Again | None = None

    @property
    def checks_accuracy(self) -> bool:
        return self.level >= 4

    def to_environment(self) -> dict[str, str]:
        return {WATCH_VARIABLE: json.dumps(asdict(self))}


# What comparing may always take, and of the time of the program that is no first call.
LEAST_CHECK_SECONDS, CHECK_SHARE = 10.0, 0.05
# What one comparison may take, and what those may take together that are made though the budget is spent.
LOOK_SECONDS, MOST_OVERDRAWN = 60.0, 300.0


@dataclass
class CheckBudget:
    """How long comparing with eager may take in one process: as long again as the program's own first calls took,
    compiles included, and 5 % of what follows, or `limit` seconds. What nobody has looked at yet is looked at anyway.

    >>> budget = CheckBudget(limit=30)
    >>> budget.seconds_for(first=False) > 29
    True
    """

    limit: float | None = None
    clock: Callable[[], float] = time.monotonic
    first_calls: float = 0.0
    spent: float = 0.0
    _inside: list[float] = field(default_factory=list)
    _spending: int = 0

    def __post_init__(self) -> None:
        self._began = self.clock()

    @staticmethod
    def of(settings: Settings) -> CheckBudget:
        """Who asks for every Nth call gets every Nth call."""
        every = float("inf") if settings.check_every else None
        return CheckBudget(every if settings.check_budget is None else settings.check_budget)

    @contextlib.contextmanager
    def first_call(self) -> Iterator[None]:
        """Around what the program does by itself and only once: a capture, a compile, the first call of a graph."""
        self._inside.append(self.clock() - self.spent)
        try:
            yield
        finally:
            began = self._inside.pop()
            if not self._inside:
                self.first_calls += self.clock() - self.spent - began

    @contextlib.contextmanager
    def spending(self) -> Iterator[None]:
        """Around what is done for the comparison alone."""
        began = self.clock()
        self._spending += 1
        try:
            yield
        finally:
            self._spending -= 1
            if not self._spending:
                self.spent += self.clock() - began

    @property
    def left(self) -> float:
        """Seconds; less than none where first looks took more than there was."""
        if self.limit is not None:
            return self.limit - self.spent
        own = self.clock() - self._began - self.spent
        first = self.first_calls + (own + self._began - self._inside[0] if self._inside else 0.0)
        return LEAST_CHECK_SECONDS + first + CHECK_SHARE * max(0.0, own - first) - self.spent

    @property
    def left_at_end(self) -> float:
        """For comparing whole calls of which none could be, once the program has ended."""
        return max(self.left, self.seconds_for(first=True))

    def seconds_for(self, first: bool) -> float:
        """For one comparison, the `first` of its kind or one more like it; none where it is not to be made."""
        left = self.left
        if first:
            left = max(left, MOST_OVERDRAWN - self.spent)
        return max(0.0, min(left, LOOK_SECONDS))


def settings_from_environment() -> Settings | None:
    """The settings this process was started with, or None where it is not watched."""
    text = os.environ.get(WATCH_VARIABLE)
    if not text:
        return None
    given = json.loads(text)
    kept = tuple((graph, call) for graph, call in given.get("keep", ()))
    again = Again(**given["again"]) if given.get("again") else None
    return Settings(**{**given, "keep": kept, "again": again})
