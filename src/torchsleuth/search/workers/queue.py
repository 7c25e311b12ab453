"""What a search sees of its workers, wherever they are: submit a trial, wait for its ticket, cancel it.

The workers keep the queue, the log of answers and the rule of repeats; who sits behind them (`pool` on this machine,
`cluster` on many) begins a trial, drops one, and says what came of it.
"""

from __future__ import annotations

import collections
import contextlib
import os
import threading
import time
from concurrent.futures import Future, InvalidStateError
from pathlib import Path

from torchsleuth.core.processes.child import Closed
from torchsleuth.core.processes.limits import Limits
from torchsleuth.core.protocol.trials import Hello, Outcome, Question, Trial
from torchsleuth.search.workers.trial_log import TrialLog, surroundings


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
