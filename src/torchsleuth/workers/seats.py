"""One isolated process as its supervisor sees it: what it said, how long its phase has lasted, how it ended.

Everything that decides an Outcome is here and needs no process: messages, clock, exit status in, Outcome out.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any

from torchsleuth.cases.crash import signature_of_crash
from torchsleuth.cases.signature import Signature
from torchsleuth.workers.kept import KeptOutput
from torchsleuth.workers.limits import Limits
from torchsleuth.workers.trial import Outcome
from torchsleuth.workers.wire import BrokenFrame, Frames, outcome_to_json

SETUP = "setup"
_WHY = {
    "memory": "it was ended because it took more than {memory} MB of memory",
    "processes": "it was ended because it started more than {processes} processes",
}


@dataclass
class Job:
    """One trial in one process: since when, in which phase, and what it said."""

    number: int
    limits: Limits
    started: float = field(default_factory=time.monotonic)
    started_at: float = field(default_factory=time.time)
    phase: str = SETUP
    since: float = field(default_factory=time.monotonic)
    outcome: dict[str, Any] | None = None
    # Why we ended it, where we did: hang, memory, processes or cancel.
    ended: str | None = None
    peak: int = 0

    def enter(self, phase: str) -> None:
        self.phase, self.since = phase, time.monotonic()

    def overdue(self, now: float) -> bool:
        return self.ended is None and now - self.since > self.limits.seconds(self.phase)


@dataclass
class Seat:
    """A process and the descriptors we hold of it; `commands` is None for one that was forked for its one job."""

    pid: int
    results: int
    output: int
    kept: KeptOutput
    commands: int | None = None
    job: Job | None = None
    # Idle, and as good as new.
    ready: bool = False
    kill_at: float | None = None
    # What a process that was sent to find something out came back with.
    learned: Any = None
    frames: Frames = field(default_factory=Frames)

    def hear(self) -> bool:
        """Reads what the process said; whether its job is decided now."""
        data = read_some(self.results)
        try:
            messages = self.frames.feed(data)
        except BrokenFrame:  # the trial wrote to our descriptor: what it said is worth nothing
            return False
        for message in messages:
            if self.job is None or not isinstance(message, dict):
                continue
            if "phase" in message:
                self.job.enter(str(message["phase"]))
            elif "outcome" in message and self.job.ended is None:
                self.job.outcome = message["outcome"]
                self.job.enter(SETUP)
                if self.commands is None:
                    return True
            elif "learned" in message:
                self.learned = message["learned"]
                return True
            elif "good" in message:
                self.ready = bool(message["good"])
                return True
        return False

    def listen(self) -> bool:
        """Reads what the process printed; False at the end of the stream."""
        data = read_some(self.output)
        self.kept.feed(data)
        return bool(data)

    def close(self) -> None:
        for descriptor in (self.results, self.output, self.commands):
            if descriptor is not None:
                os.close(descriptor)


def read_some(descriptor: int) -> bytes:
    """What can be read without waiting; nothing at the end or where nothing is there."""
    try:
        return os.read(descriptor, 1 << 18)
    except OSError:  # nothing there, or the other side is gone
        return b""


def outcome_of(job: Job, status: int | None, printed: str) -> dict[str, Any]:
    """What came of a job whose process said so, was ended by us, or ended with `status`; as a message.

    >>> outcome_of(Job(1, Limits(), phase="run"), -11, "")["signature"]["signal"]
    'SIGSEGV'
    """
    seconds = time.monotonic() - job.started
    more = {"peak_memory": job.peak}
    if job.outcome is not None:
        return {**job.outcome, "seconds": round(seconds, 4), "more": {**job.outcome["more"], **more}}
    signature: Signature | None = None
    error, text = None, printed
    if job.ended == "hang":
        if job.phase == SETUP:
            error = f"the trial was not ready to compile after {job.limits.setup:g} s"
        else:
            signature = Signature("hang", job.phase)
    else:
        code = -9 if job.ended else (status or 0)
        signature = signature_of_crash(code, job.phase)
        why = _WHY.get(job.ended or "")
        if why:
            said = why.format(memory=(job.limits.memory or 0) >> 20, processes=job.limits.processes)
            text = f"{said}\n{text}"
            more["ended_for"] = job.ended  # type: ignore[assignment]
        if job.phase == SETUP:
            error = f"the trial's process ended before it could compile ({signature.signal})"
            signature = None
    return outcome_to_json(Outcome(signature, seconds, error, text, more=more))
