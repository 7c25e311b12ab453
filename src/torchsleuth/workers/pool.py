"""Runs trials in isolation, several at a time: `with Workers(2) as workers: workers.run(trial)`.

This side keeps the queue, the log of answers and the promise that every trial gets an Outcome; the fork server does
the rest. A server that dies is replaced and its trials are tried once more: what kills two of them is told as such.
"""

from __future__ import annotations

import collections
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any

from torchsleuth.workers.environment import needs_kernels, python_command, trial_environment, uses_accelerator
from torchsleuth.workers.limits import Limits, fair_memory
from torchsleuth.workers.log import TrialLog
from torchsleuth.workers.probes import hand_probes_to
from torchsleuth.workers.processes import kill_group, kill_marked, marked
from torchsleuth.workers.trial import Outcome, Trial
from torchsleuth.workers.wire import BrokenFrame, Frames, frame, outcome_from_json, trial_to_json

RUN_TRIAL = "torchsleuth.repro.trial:run_trial"
WARM_UP = "torchsleuth.repro.trial:warm_up"
LEARN = "torchsleuth.repro.trial:learn,torchsleuth.repro.trial:recall"
STILL_GOOD = "torchsleuth.repro.trial:still_good"
# For a server to end what it started; after that it is ended itself.
LEAVE_SECONDS = 5.0
# A server that does not come up this often in a row will not come up.
STARTS = 3


class Ticket(Future[Outcome]):
    """The promise of an Outcome. `cancel` works at any time and ends the process where it runs.

    `concurrent.futures.wait` and `as_completed` take tickets as they take any future.
    """

    def __init__(self, pool: Workers, number: int, trial: Trial, limits: Limits, repeats: int) -> None:
        super().__init__()
        self.number = number
        self.trial = trial
        self.limits = limits
        self.repeats = repeats
        self.passes = 0
        self.servers_lost = 0
        self.phase = "queued"
        self.pid: int | None = None
        self._pool = pool

    def cancel(self) -> bool:
        """Gives the trial up; False where its outcome is already there."""
        if self.cancelled():
            return True
        if not super().cancel():
            return False
        self.set_running_or_notify_cancel()
        self._pool._forget(self)
        return True

    def _settle(self, outcome: Outcome) -> None:
        if not self.cancelled():
            try:
                self.set_result(outcome)
            except Exception:  # cancelled in this very moment
                pass


class Workers:
    """Up to `count` trials at a time in processes of their own, on this machine.

    `folder` keeps kernels and the log of answers (`trials.jsonl`) for a later run; without one they live as long as
    this object. `repeats` is how often a trial must pass before it counts as passing.
    """

    def __init__(
        self,
        count: int = 1,
        *,
        folder: Path | None = None,
        limits: Limits | None = None,
        repeats: int = 1,
        call: str = RUN_TRIAL,
        warm_up: str | None = WARM_UP,
        still_good: str = STILL_GOOD,
        environment: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ) -> None:
        self.count = max(1, count)
        self.limits = limits or Limits(memory=fair_memory(self.count))
        self.repeats = repeats
        # What the server said of itself when it was ready: start-up seconds, threads, torch version.
        self.hello: dict[str, Any] = {}
        self.ran = 0
        self._names = (call, warm_up, still_good)
        self._python = python
        self._scratch = None if folder is not None else tempfile.mkdtemp(prefix="torchsleuth-")
        self._folder = Path(folder or self._scratch or "").absolute()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._environment = dict(os.environ if environment is None else environment)
        self.log = TrialLog(self._folder / "trials.jsonl" if folder is not None else None)
        self._lock = threading.RLock()
        self._queue: collections.deque[Ticket] = collections.deque()
        self._running: dict[int, Ticket] = {}
        self._numbers = 0
        self._closed = False
        self._ready = threading.Event()
        self._failed_starts = 0
        self._start()
        self._reader = threading.Thread(target=self._read, name="torchsleuth-workers", daemon=True)
        self._reader.start()

    # -- what a search uses

    def submit(self, trial: Trial, *, limits: Limits | None = None, fresh: bool = False) -> Ticket:
        """Queues a trial; its ticket has the Outcome later. `fresh` asks anew, whatever the log knows."""
        with self._lock:
            if self._closed:
                raise RuntimeError("these workers are closed; make new ones with Workers(n)")
            self._numbers += 1
            ticket = Ticket(self, self._numbers, trial, limits or self.limits, 1 if fresh else self.repeats)
            known = None if fresh else self.log.answer(trial.key, self.repeats)
            if known is not None:
                ticket._settle(known)
            else:
                self._queue.append(ticket)
                self._dispatch()
        return ticket

    def run(self, trial: Trial, *, limits: Limits | None = None, fresh: bool = False) -> Outcome:
        """One trial, waited for: `workers.run(trial).fails_like(trial.expected)`."""
        return self.submit(trial, limits=limits, fresh=fresh).result()

    def wait_ready(self, seconds: float | None = None) -> dict[str, Any]:
        """Waits until the server is warm; what it said of itself."""
        self._ready.wait(seconds)
        return self.hello

    def close(self) -> None:
        """Ends everything that was started. Tickets without an outcome are cancelled."""
        with self._lock:
            self._closed = True
            waiting = [*self._queue, *self._running.values()]
        for ticket in waiting:
            ticket.cancel()
        self._end_server()
        self._reader.join(LEAVE_SECONDS)
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    # -- the server

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        call, warm_up, still_good = self._names
        self._token = uuid.uuid4().hex
        command = python_command(
            self._python,
            "torchsleuth.workers.server",
            f"--control={theirs.fileno()}",
            f"--call={call}",
            f"--still-good={still_good}",
        )
        # A warm-up that brings the compiler down is part of the bug that is looked for: then without one.
        if warm_up and not self._failed_starts:
            command += [f"--warm-up={warm_up}", *([f"--learn={LEARN}"] if warm_up == WARM_UP else [])]
        if self._scratch is not None:
            command.append(f"--scratch={self._scratch}")
        hand_probes_to(self._folder / "kernels")
        with open(self._folder / "server.log", "wb") as said:
            self._server = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=marked(trial_environment(self._environment, self._folder), self._token),
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
        theirs.close()
        self._control = ours

    def _end_server(self) -> None:
        try:
            self._control.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        try:
            self._server.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        kill_marked(self._token)

    def _read(self) -> None:
        """The reader's thread: what servers say, one after the other."""
        while True:
            frames = Frames()
            try:
                while data := self._control.recv(1 << 18):
                    for message in frames.feed(data):
                        self._hear(message)
            except (OSError, BrokenFrame):
                pass
            with self._lock:
                if self._closed:
                    break
                self._replace_server()
                if self._closed:
                    break

    def _hear(self, message: dict[str, Any]) -> None:
        with self._lock:
            if "hello" in message:
                self.hello = message["hello"]
                self._failed_starts = 0
                self._ready.set()
            elif "started" in message and message["started"] in self._running:
                self._running[message["started"]].pid = message["pid"]
            elif "done" in message:
                ticket = self._running.pop(message["done"], None)
                if ticket is not None and message["outcome"] is not None and not ticket.cancelled():
                    ticket.phase = message["phase"]
                    self._conclude(ticket, outcome_from_json(message["outcome"]))
            self._dispatch()

    def _conclude(self, ticket: Ticket, outcome: Outcome) -> None:
        self.ran += 1
        ticket.passes += 1
        if outcome.error is None and outcome.signature is None and ticket.passes < ticket.repeats:
            self._queue.appendleft(ticket)
            return
        self.log.remember(ticket.trial.key, outcome, ticket.trial.expected, ticket.passes)
        ticket._settle(outcome)

    def _dispatch(self) -> None:
        while self._ready.is_set() and self._queue and len(self._running) < self.count:
            ticket = self._queue.popleft()
            if ticket.cancelled():
                continue
            self._running[ticket.number] = ticket
            message = {
                "number": ticket.number,
                "trial": trial_to_json(ticket.trial),
                "limits": ticket.limits.to_json(),
                "warm": uses_accelerator(ticket.trial),
                "kernels": needs_kernels(ticket.trial),
            }
            self._send(message)

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._control.sendall(frame(message))
        except OSError:  # the reader will notice, and try again with another server
            pass

    def _forget(self, ticket: Ticket) -> None:
        with self._lock:
            if ticket.number in self._running:
                self._send({"cancel": ticket.number})

    def _replace_server(self) -> None:
        """The server is gone: ends what it left, starts another, and gives its trials one more chance."""
        if not self._ready.is_set():
            self._failed_starts += 1
        self._ready.clear()
        self._end_server()
        for ticket in self._running.values():
            if ticket.pid is not None:
                kill_group(ticket.pid)
        lost = [ticket for ticket in self._running.values() if not ticket.cancelled()]
        self._running.clear()
        if self._failed_starts >= STARTS:
            self._give_up(lost)
            return
        for ticket in reversed(lost):
            ticket.servers_lost += 1
            if ticket.servers_lost < 2:
                self._queue.appendleft(ticket)
            else:
                ticket._settle(
                    Outcome(None, 0.0, error="the trial's supervisor was killed twice while it ran")
                )
        self._start()

    def _give_up(self, lost: list[Ticket]) -> None:
        self._closed = True
        said = (self._folder / "server.log").read_text(encoding="utf-8", errors="replace").strip()
        why = f"no process to run trials in could be started: {said[-500:] or 'it ended without a word'}"
        for ticket in [*lost, *self._queue]:
            ticket._settle(Outcome(None, 0.0, error=why))
        self._queue.clear()


def run_trial(trial: Trial, *, limits: Limits | None = None) -> Outcome:
    """One trial in isolation, with a server of its own; several are cheaper with `Workers`."""
    with Workers(1, limits=limits) as workers:
        return workers.run(trial)
