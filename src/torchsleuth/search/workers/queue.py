"""What a search sees of its workers, wherever they are: submit a trial, wait for its ticket, cancel it.

The workers keep the queue, the log of answers and the rule of repeats; who sits behind them (`pool` on this machine,
`cluster` on many) begins a trial, drops one, and says what came of it.

Answers that were given once are not asked for again: the log is append-only, and the resume file. One JSON line per
answer; a line that was cut off by a kill is skipped. Only what would come out the same again is an answer: time-outs,
kills from outside and errors are tried anew. Answers of another torch are not ours.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from dataclasses import replace
from pathlib import Path

from torchsleuth.core.processes.child import Closed
from torchsleuth.core.processes.limits import Limits
from torchsleuth.core.protocol.trials import Hello, Outcome, Question, Trial
from torchsleuth.script_runtime.signature import Signature


class Ticket(Future[Outcome]):
    """The promise of an Outcome. `cancel` works at any time and ends the process where it runs.

    `concurrent.futures.wait` and `as_completed` take tickets as they take any future.
    """

    def __init__(self, workers: TrialQueue, number: int, trial: Trial, limits: Limits, repeats: int) -> None:
        super().__init__()
        self.number = number
        self.trial = trial
        self.limits = limits
        self.repeats = repeats
        self.passes = 0
        self.servers_lost = 0
        self.phase = "queued"
        self.pid: int | None = None
        self._desk = workers

    def cancel(self) -> bool:
        """Gives the trial up; False where its outcome is already there."""
        if self.cancelled():
            return True
        if not super().cancel():
            return False
        self.set_running_or_notify_cancel()
        self._desk._forget(self)
        return True

    def _settle(self, outcome: Outcome) -> None:
        with contextlib.suppress(InvalidStateError):  # cancelled, maybe in this very moment
            self.set_result(outcome)


class TrialQueue(Closed):
    """Up to `count` trials at a time; the parts that do not depend on where they run.

    `repeats` is how often a trial must pass before it counts as passing; it may be changed between trials.
    """

    def __init__(self, count: int, limits: Limits, repeats: int, log: Path | None) -> None:
        self.count = max(1, count)
        self.limits = limits
        self.repeats = repeats
        # How many trials were run to their end; answers from the log are not among them.
        self.ran = 0
        # Seconds from the beginning until a first trial could run.
        self.start_up = 0.0
        self._begun = time.monotonic()
        self.log = TrialLog(log, surroundings(os.environ))
        self._lock = threading.RLock()
        self._queue: collections.deque[Ticket] = collections.deque()
        self._running: dict[int, Ticket] = {}
        self._numbers = 0
        self._closed = False
        self._ready = threading.Event()

    # -- what a search uses

    def submit(self, trial: Trial, *, limits: Limits | None = None, fresh: bool = False) -> Ticket:
        """Queues a trial; its ticket has the Outcome later. `fresh` asks anew, whatever the log knows."""
        with self._lock:
            if self._closed:
                raise RuntimeError("these workers are closed; make new ones with Workers(n)")
            self._numbers += 1
            ticket = Ticket(self, self._numbers, trial, limits or self.limits, 1 if fresh else self.repeats)
            known = None if fresh else self.log.answer(trial.key, self.repeats)
            if known is not None and not _outwaited(known, ticket.limits):
                ticket._settle(known)
            else:
                self._queue.append(ticket)
                self._dispatch()
        return ticket

    def wait_ready(self, seconds: float | None = None) -> Hello:
        """Waits until whoever sits behind the workers has come up; what they said of themselves."""
        return Hello()

    def run(self, trial: Trial, *, limits: Limits | None = None, fresh: bool = False) -> Outcome:
        """One trial, waited for: `workers.run(trial).fails_like(trial.expected)`."""
        return self.submit(trial, limits=limits, fresh=fresh).result()

    def close(self) -> None:
        """Ends everything that was started. Tickets without an outcome are cancelled."""
        with self._lock:
            self._closed = True
            waiting = [*self._queue, *self._running.values()]
            self._queue.clear()
        for ticket in waiting:
            ticket.cancel()

    # -- what those behind the workers do

    def _begin(self, ticket: Ticket) -> None:
        raise NotImplementedError

    def _drop(self, ticket: Ticket) -> None:
        raise NotImplementedError

    # -- and what they call

    def _dispatch(self) -> None:
        while self._ready.is_set() and self._queue and len(self._running) < self.count:
            ticket = self._queue.popleft()
            if not ticket.cancelled():
                self._running[ticket.number] = ticket
                self._begin(ticket)

    def _forget(self, ticket: Ticket) -> None:
        with self._lock:
            if ticket.number in self._running:
                self._drop(ticket)

    def _conclude(self, ticket: Ticket, outcome: Outcome) -> None:
        self.ran += 1
        ticket.passes += 1
        if outcome.error is None and outcome.signature is None and ticket.passes < ticket.repeats:
            self._queue.appendleft(ticket)
            return
        if ticket.trial.question in (Question.FAILS, Question.PROGRAM):
            self.log.remember(ticket.trial.key, outcome, ticket.trial.expected, ticket.passes)
        ticket._settle(outcome)

    def _try_again(self, lost: list[Ticket], why: str) -> None:
        """Trials whose supervisor is gone get one more chance; what takes two of them along is told as an error."""
        for ticket in reversed(lost):
            ticket.servers_lost += 1
            if ticket.servers_lost < 2:
                self._queue.appendleft(ticket)
            else:
                ticket._settle(Outcome(None, 0.0, error=why))


def _outwaited(known: Outcome, limits: Limits) -> bool:
    """Whether an answer is that of a shorter clock: what hung then may end by now."""
    if known.signature is None or known.signature.kind != "hang":
        return False
    clock = known.seconds if known.seen.clock is None else known.seen.clock
    return clock < limits.seconds(known.signature.phase)


# What a crashing program does to itself; any other signal came from outside.
_OWN_SIGNALS = {"SIGSEGV", "SIGABRT", "SIGFPE", "SIGBUS", "SIGILL", "SIGTRAP", "SIGSYS"}
# Settings by environment change answers as those in a trial do; where files lie does not.
_SETTINGS = ("TORCH", "PYTORCH", "TRITON", "OMP_", "MKL_", "ATEN_", "CUDA_", "CXX", "CC")
_PLACES = ("_DIR", "_PATH", "_HOME")
# Enough of a traceback to read; the log of a long search stays small.
_TEXT = 8 << 10


class TrialLog:
    """The answers in one file; None instead of a path remembers for the life of this object only."""

    def __init__(self, path: Path | None = None, context: str | None = None) -> None:
        self.path = path
        self._context = surroundings(os.environ) if context is None else context
        self._answers: dict[str, tuple[Outcome, int]] = {}
        self._lock = threading.Lock()
        if path is not None and path.exists():
            self._read(path)

    def _read(self, path: Path) -> None:
        with open(path, "rb") as file:
            for line in file:
                try:
                    entry = json.loads(line)
                    if entry["context"] == self._context:
                        outcome = Outcome.from_json(entry["outcome"])
                        self._answers[entry["key"]] = replace(outcome, cached=True), int(entry["runs"])
                except (ValueError, KeyError, TypeError):  # cut off by a kill, or not ours
                    continue

    def __len__(self) -> int:
        return len(self._answers)

    def answer(self, key: str, runs: int = 1) -> Outcome | None:
        """The outcome known for `key`; a pass counts only if it was seen at least `runs` times in a row.

        >>> TrialLog().answer("unknown") is None
        True
        """
        outcome, seen = self._answers.get(key, (None, 0))
        if outcome is not None and outcome.signature is None and seen < runs:
            return None
        return outcome

    def remember(self, key: str, outcome: Outcome, expected: Signature, runs: int = 1) -> bool:
        """Keeps the outcome where it is an answer; whether it was kept."""
        if not is_answer(outcome, expected):
            return False
        known = replace(outcome, text=outcome.text[-_TEXT:], cached=True)
        with self._lock:
            self._answers[key] = known, runs
            if self.path is not None:
                entry = {"key": key, "runs": runs, "context": self._context, "outcome": known.to_json()}
                _append(self.path, json.dumps(entry).encode() + b"\n")
        return True


def _append(path: Path, line: bytes) -> None:
    """Adds one line in one write, on a line of its own even where the last one was cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+b", buffering=0) as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                line = b"\n" + line
        file.write(line)


def is_answer(outcome: Outcome, expected: Signature) -> bool:
    """Whether the same trial would come out the same again.

    >>> is_answer(Outcome(Signature("hang", "run"), 30.0), Signature("crash", "run"))
    False
    """
    if outcome.error is not None:
        return False
    seen = outcome.signature
    if seen is None or outcome.fails_like(expected):
        return True
    if seen.kind == "crash":
        return seen.signal in _OWN_SIGNALS or (seen.signal or "").startswith("exit ")
    return seen.kind != "hang"


def surroundings(environment: Mapping[str, str]) -> str:
    """A short name for what answers depend on beside the trial: torch, Python, machine, settings by environment.

    >>> surroundings({}) == surroundings({"HOME": "elsewhere"})
    True
    """
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = "?"
    parts = [torch, platform.python_version(), platform.machine(), settings_in(environment)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def settings_in(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """The variables that set up torch and its compilers, sorted: `settings_in({"HOME": "x"}) == []`."""
    return sorted(
        (name, value)
        for name, value in environment.items()
        if name.startswith(_SETTINGS) and not name.endswith(_PLACES) and not name.startswith("TORCHSLEUTH_")
    )
