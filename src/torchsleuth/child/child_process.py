"""One isolated process as its supervisor sees it: what it said, how long its phase has lasted, how it ended.

Everything that decides an Outcome is here and needs no process: messages, clock, exit status in, Outcome out.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from typing import Any

from torchsleuth.core.cases.crash import signature_of_crash
from torchsleuth.core.processes.bounded_output import BoundedOutput
from torchsleuth.core.processes.limits import Limits
from torchsleuth.core.processes.stopwatch import Stopwatch
from torchsleuth.core.protocol.frames import BrokenFrame, Frames
from torchsleuth.core.protocol.trials import FROM_CHILD, Good, Learned, Outcome, Phase, Seen
from torchsleuth.script_runtime.signature import Signature

SETUP = "setup"
ONCE, DEVICE, SHAPES = "once", "device", "shapes"
TIME_WAS_UP = "the time was up before the trial was done (--budget)"
_WHY = {
    "memory": "it was ended because it took more than {memory} MB of memory",
    "processes": "it was ended because it started more than {processes} processes",
}


@dataclass
class Job:
    """One trial in one process: since when, in which phase, and what it said."""

    number: int
    limits: Limits
    pid: int | None = None
    started: float = field(default_factory=time.monotonic)
    started_at: float = field(default_factory=time.time)
    phase: str = SETUP
    outcome: Outcome | None = None
    # Why we ended it, where we did: hang, late, memory, processes or cancel.
    ended: str | None = None
    peak: int = 0
    # Seconds that the phases before this one had.
    had: float = 0.0

    def __post_init__(self) -> None:
        self.watch = Stopwatch(self.pid)

    def enter(self, phase: str) -> None:
        self.had += self.watch.seconds
        self.phase, self.watch = phase, Stopwatch(self.pid)

    def overdue(self, now: float) -> str | None:
        """Why it is to be ended now, if it is: its phase has hung, or the time for everything is up."""
        if self.ended is None and self.watch.seconds > self.limits.seconds(self.phase):
            return "hang"
        late = self.limits.deadline is not None and now > self.limits.deadline
        return "late" if self.ended is None and late else None


@dataclass
class ChildProcess:
    """A process and the descriptors we hold of it; `serves` says for which trials it is there.

    "once": forked for one trial. "device": started anew, because a device does not survive a fork, and goes on while it
    is as good as new. "shapes": forked, and goes on, for questions that compute nothing.
    """

    pid: int
    commands: int
    results: int
    output: int
    serves: str
    job: Job | None = None
    # It waits for a trial, and is as good as new.
    ready: bool = True
    kill_at: float | None = None
    # What a process that was sent to find something out came back with.
    learned: Any = None
    printed: BoundedOutput = field(default_factory=lambda: BoundedOutput(0))
    frames: Frames = field(default_factory=lambda: Frames(*FROM_CHILD))

    @property
    def descriptors(self) -> tuple[int, int, int]:
        return self.commands, self.results, self.output

    def take(self, job: Job) -> None:
        self.job, self.ready, self.printed = job, False, BoundedOutput(job.limits.output)

    def hear(self) -> tuple[bool, bool]:
        """Reads what the process said: whether it may say more, and whether its job is decided now."""
        data = read_some(self.results)
        if not data:
            return data is None, False
        try:
            messages = self.frames.feed(data)
        except BrokenFrame:  # the trial wrote to our descriptor: what it says is worth nothing
            return False, False
        heeded = [self._heed(message) for message in messages]
        return True, any(heeded)

    def _heed(self, message: Any) -> bool:
        if self.job is None:
            return False
        if isinstance(message, Phase):
            self.job.enter(message.name)
        elif isinstance(message, Outcome) and self.job.ended is None:
            self.job.outcome = message
            self.job.enter(SETUP)
            return self.serves == ONCE
        elif isinstance(message, Learned):
            self.learned = message.what
            return True
        elif isinstance(message, Good):
            self.ready = message.good
            return True
        return False

    def listen(self) -> bool:
        """Reads what the process printed; False at the end of the stream."""
        data = read_some(self.output)
        self.printed.feed(data or b"")
        return data != b""


def read_some(descriptor: int) -> bytes | None:
    """What can be read without waiting: None where nothing is there yet, no bytes at the end."""
    try:
        return os.read(descriptor, 1 << 18)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def outcome_of(job: Job, status: int | None, printed: str) -> Outcome:
    """What came of a job whose process said so, was ended by us, or ended with `status`.

    >>> outcome_of(Job(1, Limits(), phase="run"), -11, "").signature.signal
    'SIGSEGV'
    """
    seconds, had = time.monotonic() - job.started, round(job.had + job.watch.seconds, 4)
    if job.outcome is not None:
        seen = replace(job.outcome.seen, had=had, peak_memory=job.peak)
        return replace(job.outcome, seconds=seconds, seen=seen)
    seen = Seen(had, job.peak)
    if job.ended == "late":
        return Outcome(None, seconds, TIME_WAS_UP, printed, seen=seen)
    if job.ended == "hang":
        seen = replace(seen, clock=job.limits.seconds(job.phase))
        if job.phase == SETUP:
            error = f"the trial was not ready to compile after {job.limits.setup:g} s"
            return Outcome(None, seconds, error, printed, seen=seen)
        return Outcome(Signature("hang", job.phase), seconds, None, printed, seen=seen)
    signature = signature_of_crash(-9 if job.ended else (status or 0), job.phase)
    if job.ended in _WHY:
        said = _WHY[job.ended].format(memory=(job.limits.memory or 0) >> 20, processes=job.limits.processes)
        printed = f"{said}\n{printed}"
        seen = replace(seen, ended_for=job.ended)
    if job.phase == SETUP:
        error = f"the trial's process ended before it could compile ({signature.signal})"
        return Outcome(None, seconds, error, printed, seen=seen)
    return Outcome(signature, seconds, None, printed, seen=seen)
