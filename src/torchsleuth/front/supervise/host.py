"""The search host as the front sees it: a process that is asked for one step at a time, and may die at any moment.

The host says what it is doing before it does it. One that dies, takes more memory than is fair or outlasts its time is
started again once, without what it was doing; the log of trials makes it arrive there quickly. If that fails as well,
the step ends with a sentence, and what the host had put into the case stays.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.processes.child import Closed, goes_with_us, scratch
from torchsleuth.core.processes.limits import fair_memory
from torchsleuth.core.processes.prepared import PreparedInterpreter, begin_call
from torchsleuth.core.processes.starting import fresh_environment
from torchsleuth.core.processes.tree import kill_group, resident_bytes
from torchsleuth.core.protocol.frames import BrokenFrame, Frames, frame
from torchsleuth.core.protocol.steps import FROM_HOST, Begins, Done, HostStarted, Order, Refused, Seen

HOST = "torchsleuth.search.host.main:main"
# Of the time for a step, what the host is not told of: it ends its trials then, and writes what it found.
GRACE_SECONDS, GRACE_SHARE = 15.0, 0.1
TICK = 0.25
# To end by itself once nobody listens any more, with its trials.
LEAVE_SECONDS = 5.0


class HostLost(SleuthError):
    """The search host ended before its step did, twice or where nothing could be left out; says what it was doing."""

    exit_status = 1  # the case is fine, and what was found stays


class StepRefused(SleuthError):
    """The search host says in a sentence why a step cannot be done."""

    def __init__(self, sentence: str, exit_status: int) -> None:
        super().__init__(sentence)
        self.exit_status = exit_status


@dataclass(frozen=True)
class _Death:
    """How a host ended, in words, and what it was doing."""

    how: str
    doing: str

    def __str__(self) -> str:
        return f"the search process {self.how} while {self.doing}"


@dataclass
class SearchHost(Closed):
    """The host of one case: `with SearchHost(prepared, "2", work) as host: host.ask(TriageOrder(path), 60)`.

    `work` is the folder that keeps kernels and answers between hosts. It starts at once, before it is asked.
    """

    prepared: PreparedInterpreter
    workers: str
    work: Path | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    # What hosts were doing when they ended: the next one leaves it out.
    left_out: list[str] = field(default_factory=list)
    # Of the trials to come, where that is no CPU: its set-up takes seconds, and is begun at once.
    device: str | None = None
    memory: int | None = field(default_factory=lambda: fair_memory(1))

    def __post_init__(self) -> None:
        self._scratch = Path(tempfile.mkdtemp(dir=scratch()))
        # Beside the kernels, where there is room for them; gone when the host is.
        self._values = (self.work or self._scratch).absolute() / "values"
        self._over = goes_with_us(self._values)
        self._start()

    def ask(
        self,
        order: Order,
        budget: float,
        *,
        said: Callable[[str], None] = lambda text: None,
        heard: Callable[[Seen], None] = lambda message: None,
    ) -> Done:
        """What came of a step; raises `StepRefused` or `HostLost`. `heard` gets what the host tells meanwhile.

        After `budget` seconds it is over: a host that has not ended by then is ended.
        """
        until = time.monotonic() + budget
        deaths = 0
        while True:
            left = max(1.0, until - time.monotonic())
            told = left - min(GRACE_SECONDS, GRACE_SHARE * left)
            found = self._asked(replace(order, budget=told, leave_out=tuple(self.left_out)), left, heard)
            if isinstance(found, Done):
                return found
            deaths += 1
            self.left_out.append(found.doing)
            self._start()  # also for the steps to come
            if deaths > 1 or time.monotonic() > until:
                raise HostLost(f"{found}; what is known so far is kept")
            said(f"{found}; starting it again without that")

    def close(self) -> None:
        """Ends the host and everything below it."""
        self._end()
        for folder in (self._values, self._scratch):
            shutil.rmtree(folder, ignore_errors=True)
        self._over()

    # -- the process

    def _start(self) -> None:
        self._control, theirs = socket.socketpair()
        self._frames: Frames[HostStarted | Seen | Refused | Done] = Frames(*FROM_HOST)
        self._pid: int | None = None
        self._doing = "starting"
        self._works = False
        environment = fresh_environment(self.environment, self._scratch / "unused")
        arguments = [f"--workers={self.workers}", f"--values={self._values}"]
        arguments += [f"--work={self.work}"] if self.work else []
        arguments += [f"--device={self.device}"] if self.device else []
        self._process = begin_call(self.prepared, HOST, arguments, theirs, environment, self.log, joins=True)

    @property
    def log(self) -> Path:
        """What the host printed, mostly nothing."""
        return self._scratch / "host.log"

    def _end(self) -> None:
        """Ends the host: one that is idle goes when nobody listens any more, one that works is not waited for."""
        self._control.close()
        if self._works and self._pid is not None:
            kill_group(self._pid)
        try:
            self._process.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.end()

    def _asked(self, order: Order, budget: float, heard: Callable[[Seen], None]) -> Done | _Death:
        until = time.monotonic() + budget
        self._works = True
        try:
            self._control.sendall(frame(order))
        except OSError:
            return self._died()
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            while True:
                if selector.select(TICK):
                    try:
                        data = self._control.recv(1 << 18)
                        messages = self._frames.feed(data)
                    except (OSError, BrokenFrame):
                        data, messages = b"", []
                    for message in messages:
                        if (found := self._heard(message, heard)) is not None:
                            return found
                    if not data:
                        return self._died()
                if time.monotonic() > until:
                    return self._ended("did not end in its time")
                if self._pid is not None and self.memory and resident_bytes(self._pid) > self.memory:
                    return self._ended(f"took more than {self.memory >> 20} MB of memory")

    def _heard(
        self, message: HostStarted | Seen | Refused | Done, heard: Callable[[Seen], None]
    ) -> Done | None:
        match message:
            case HostStarted():
                self._pid = message.pid
            case Refused():
                self._works = False
                raise StepRefused(message.sentence, message.status)
            case Done():
                self._works = False
                return message
            case Begins():
                self._doing = message.doing
                heard(message)
            case _:
                heard(message)
        return None

    def _ended(self, how: str) -> _Death:
        self._end()
        return _Death(f"was ended: it {how}", self._doing)

    def _died(self) -> _Death:
        try:
            code = self._process.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            return self._ended("hung up")
        self._control.close()
        home = self.prepared.how_it_ended
        if home is not None:
            return _Death(f"was lost with the interpreter it was forked from ({home})", self._doing)
        if code < 0:
            return _Death(f"died of {signal.Signals(-code).name}", self._doing)
        said = self.log.read_text(encoding="utf-8", errors="replace").strip() if self.log.exists() else ""
        word = f" ({said.splitlines()[-1][:200]})" if said else ""
        return _Death(f"ended with status {code}{word}", self._doing)
