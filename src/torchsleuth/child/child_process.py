"""One isolated process as its supervisor sees it: how it is made, what it said, how long its phase has lasted, its end.

What decides an Outcome needs no process: messages, clock, exit status in, Outcome out. A process is forked from the
warm server, or started anew for an accelerator, and waits for its first trial on a pipe. A fork takes tens of
milliseconds where much is loaded, so the server makes the next process while the present one works.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from torchsleuth.child.child import isolate
from torchsleuth.core.processes.child import Child
from torchsleuth.core.processes.limits import Limits, Stopwatch
from torchsleuth.core.processes.starting import python_command
from torchsleuth.core.protocol.failures import signature_of_crash
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
    learned: object = None
    printed: BoundedOutput = field(default_factory=lambda: BoundedOutput(0))
    frames: Frames[object] = field(default_factory=lambda: Frames(*FROM_CHILD))

    @property
    def descriptors(self) -> tuple[int, int, int]:
        return self.commands, self.results, self.output

    def take(self, job: Job) -> None:
        self.job, self.ready, self.printed = job, False, BoundedOutput(job.limits.output)

    def receive(self) -> tuple[bool, bool]:
        """Reads what the process said: whether it may say more, and whether its job is decided now."""
        data = read_some(self.results)
        if not data:
            return data is None, False
        try:
            messages = self.frames.feed(data)
        except BrokenFrame:  # the trial wrote to our descriptor: what it says is worth nothing
            return False, False
        decided = [self._take_in(message) for message in messages]
        return True, any(decided)

    def _take_in(self, message: object) -> bool:
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


class BoundedOutput:
    """The first and last `limit // 2` bytes of what it was fed.

    >>> kept = BoundedOutput(4); kept.feed(b"abcdef"); kept.text()
    'ab\\n... 2 bytes left out ...\\nef'
    """

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def feed(self, data: bytes) -> None:
        """Takes the next piece of the stream."""
        self.total += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        # Trimmed only at twice the size, so that the cost per byte stays constant.
        if len(self._tail) > 2 * self._half:
            del self._tail[: len(self._tail) - self._half]

    def text(self) -> str:
        """What was kept, as text."""
        tail = bytes(self._tail[-self._half :]) if self._half else b""
        left_out = self.total - len(self._head) - len(tail)
        gap = f"\n... {left_out} bytes left out ...\n".encode() if left_out else b""
        return (bytes(self._head) + gap + tail).decode("utf-8", errors="replace")


Work = Callable[[int, int], None]


def fork_child(work: Work, inherited: Iterable[int], serves: str = ONCE) -> ChildProcess:
    """A forked process that does `work(commands, results)` and ends; it keeps none of the `inherited` descriptors."""
    commands, ours_commands = os.pipe()
    ours_results, results = os.pipe()
    ours_output, output = os.pipe()
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            isolate(server, [*inherited, ours_commands, ours_results, ours_output], output)
            work(commands, results)
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(0)
    return _child(pid, ours_commands, ours_results, ours_output, (commands, results, output), serves)


def spawn_child(environment: Mapping[str, str], call: str, still_good: str) -> ChildProcess:
    """A process of its own kind, started anew, that runs trials one after the other while it is good."""
    commands, ours_commands = os.pipe()
    ours_results, results = os.pipe()
    ours_output, output = os.pipe()
    numbers = (os.getpid(), commands, results)
    child = Child(
        python_command(sys.executable, "torchsleuth.child.child", *numbers, call, still_good),
        environment=environment,
        stdout=output,
        stderr=output,
        handed=(commands, results),
        tied=False,
    )
    pid = child.reaped_by_us()
    return _child(pid, ours_commands, ours_results, ours_output, (commands, results, output), DEVICE)


def _child(
    pid: int, commands: int, results: int, output: int, theirs: tuple[int, int, int], serves: str
) -> ChildProcess:
    for descriptor in theirs:
        os.close(descriptor)
    for descriptor in (results, output):
        os.set_blocking(descriptor, False)
    return ChildProcess(pid, commands, results, output, serves)
