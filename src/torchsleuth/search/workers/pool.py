"""Runs trials in isolation on this machine: `with Workers(2) as workers: workers.run(trial)`.

A fork server does the work; this side keeps it alive. A server that dies is replaced and its trials are tried once
more, so that every trial gets an Outcome whatever happens to the processes below. They run in the user's environment,
less what would hide a compile or start threads: a kernel cache of the search's own is shared between them, and caches
of whole graphs are off, because a graph that is found there is not compiled, and the failure looked for is in the
compiling.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from torchsleuth.child.child_process import DEVICE, ONCE, SHAPES
from torchsleuth.core.processes.child import Process, scratch
from torchsleuth.core.processes.kernel_caches import drop_torn, hand_probes_to
from torchsleuth.core.processes.limits import Limits, fair_memory
from torchsleuth.core.processes.prepared import PreparedInterpreter, begin_call
from torchsleuth.core.processes.starting import fresh_environment, sees_devices
from torchsleuth.core.processes.tree import kill_group, kill_marked, marked
from torchsleuth.core.protocol.codec import to_json
from torchsleuth.core.protocol.frames import BrokenFrame, Frames, frame
from torchsleuth.core.protocol.trials import (
    FROM_SERVER,
    Cancel,
    Hello,
    Outcome,
    Question,
    RunTrial,
    Trial,
    TrialDone,
    TrialStarted,
)
from torchsleuth.search.workers.queue import Ticket, TrialQueue

SERVER = "torchsleuth.child.server:main"
RUN_TRIAL = "torchsleuth.child.answers:answer"
WARM_UP = "torchsleuth.child.compile:warm_up"
LEARN = "torchsleuth.child.compile:learn,torchsleuth.child.compile:recall"
STILL_GOOD = "torchsleuth.child.compile:still_good"
# For a server to end what it started; after that it is ended itself.
LEAVE_SECONDS = 5.0
LOADING_LEAVE_SECONDS = 0.1
# A server that does not come up this often in a row will not come up.
STARTS = 3


class Workers(TrialQueue):
    """Up to `count` trials at a time in processes of their own, on this machine.

    `folder` keeps kernels and the log of answers (`trials.jsonl`) for a later run; without one they live as long as
    this object. `repeats` is how often a trial must pass before it counts as passing. `prepared` is an interpreter with
    torch loaded from which the first server is forked; it must stay open as long as the workers.
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
        prepared: PreparedInterpreter | None = None,
    ) -> None:
        self._prepared = prepared
        limits = limits or Limits(memory=fair_memory(max(1, count)))
        super().__init__(count, limits, repeats, folder / "trials.jsonl" if folder is not None else None)
        # What the server said of itself when it was ready: start-up seconds, threads, torch version.
        self.hello = Hello()
        self._names = (call, warm_up, still_good)
        self._python = python
        self._scratch = None if folder is not None else tempfile.mkdtemp(dir=scratch())
        self.folder = Path(folder or self._scratch or "").absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        # Whoever worked here before may have been ended in the middle of a library.
        drop_torn(self.folder / "kernels", since=0.0)
        self._environment = dict(os.environ if environment is None else environment)
        self._failed_starts = 0
        self._server: Process
        self._start()
        self._reader = threading.Thread(target=self._read, name="torchsleuth-workers", daemon=True)
        self._reader.start()

    def wait_ready(self, seconds: float | None = None) -> Hello:
        """Waits until the server is warm; what it said of itself."""
        self._ready.wait(seconds)
        return self.hello

    def close(self) -> None:
        """Ends everything that was started. Tickets without an outcome are cancelled."""
        super().close()
        self._end_server()
        self._reader.join(LEAVE_SECONDS)
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    # -- the server

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        call, warm_up, still_good = self._names
        self._token = uuid.uuid4().hex
        arguments = [f"--call={call}", f"--still-good={still_good}", f"--temporary={tempfile.gettempdir()}"]
        # A warm-up that brings the compiler down is part of the bug that is looked for: then without one.
        if warm_up and not self._failed_starts:
            arguments += [f"--warm-up={warm_up}", *([f"--learn={LEARN}"] if warm_up == WARM_UP else [])]
        if self._scratch is not None:
            arguments.append(f"--scratch={self._scratch}")
        hand_probes_to(self.folder / "kernels")
        environment = marked(trial_environment(self._environment, self.folder), self._token)
        log = self.folder / "server.log"
        log.write_bytes(b"")
        prepared, self._prepared = self._prepared, None  # what replaces a server owes it nothing
        self._server = begin_call(prepared, SERVER, arguments, theirs, environment, log, python=self._python)
        self._control = ours

    def _end_server(self) -> None:
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        try:
            # One that still loads hears nothing, and has started nothing yet.
            self._server.wait(LEAVE_SECONDS if self._ready.is_set() else LOADING_LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            self._server.end()
        kill_marked(self._token)

    def _read(self) -> None:
        """The reader's thread: what servers say, one after the other."""
        while True:
            frames: Frames[Hello | TrialStarted | TrialDone] = Frames(*FROM_SERVER)
            with contextlib.suppress(OSError, BrokenFrame):
                while data := self._control.recv(1 << 18):
                    for message in frames.feed(data):
                        self._receive(message)
            with self._lock:
                if not self._closed:
                    try:
                        self._replace_server()
                    except BaseException as error:  # whatever it is, somebody waits for an answer
                        self._give_up(f"{type(error).__name__}: {error}")
                if self._closed:
                    break

    def _receive(self, message: Hello | TrialStarted | TrialDone) -> None:
        with self._lock:
            if isinstance(message, Hello):
                self.hello = message
                self.start_up = self.start_up or time.monotonic() - self._begun
                self._failed_starts = 0
                self._ready.set()
            elif isinstance(message, TrialDone):
                ticket = self._running.pop(message.number, None)
                if ticket is not None and message.outcome is not None and not ticket.cancelled():
                    ticket.phase = message.phase
                    self._conclude(ticket, message.outcome)
            elif message.number in self._running:
                self._running[message.number].pid = message.pid
            self._dispatch()

    def _begin(self, ticket: Ticket) -> None:
        text = json.dumps(to_json(ticket.trial))
        kernels = needs_kernels(ticket.trial)
        self._send(RunTrial(ticket.number, text, ticket.limits, served_by(ticket.trial), kernels))

    def _drop(self, ticket: Ticket) -> None:
        self._send(Cancel(ticket.number))

    def _send(self, message: RunTrial | Cancel) -> None:
        with contextlib.suppress(OSError):  # the reader will notice, and try again with another server
            self._control.sendall(frame(message))

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
            self._queue.extendleft(reversed(lost))
            self._give_up((self.folder / "server.log").read_text(encoding="utf-8", errors="replace").strip())
            return
        self._try_again(lost, "the trial's supervisor was killed twice while it ran")
        self._start()

    def _give_up(self, said: str) -> None:
        self._closed = True
        why = f"no process to run trials in could be started: {said[-500:] or 'it ended without a word'}"
        for ticket in [*self._running.values(), *self._queue]:
            ticket._settle(Outcome(None, 0.0, error=why))
        self._queue.clear()


_INDUCTOR = re.compile(r"inductor|compile_fx|torch\.compile")
_ACCELERATOR = re.compile(r"\b(?:cuda|hip|xpu|mps|hpu|npu|mtia)\b")


def trial_environment(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """What the fork server and all below it are started with; `folder` is the search's own.

    >>> trial_environment({}, Path("search"))["TORCHINDUCTOR_COMPILE_THREADS"]
    '1'
    """
    made = fresh_environment(environment, folder / "kernels")
    return {
        **made,
        "TRITON_CACHE_DIR": str(folder / "kernels" / "triton"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
        # A library with threads of its own must not be forked; numpy's would start them on import.
        "OPENBLAS_NUM_THREADS": "1",
    }


def uses_accelerator(trial: Trial) -> bool:
    """Whether a trial may touch a device whose context does not survive a fork.

    >>> uses_accelerator(Trial("torch.zeros(2, device='cuda')", Signature("crash", "run")))
    True
    """
    described = json.dumps([trial.inputs, trial.constants])
    return any(_ACCELERATOR.search(text) for text in (described, trial.graph, trial.embedded))


def served_by(trial: Trial) -> str:
    """Which kind of process a trial needs: one for a device, one that works out shapes, or one of its own.

    >>> served_by(Trial("", Signature("crash", "run")))
    'once'
    """
    # A program may name a device only to see whether there is one.
    if uses_accelerator(trial) and (trial.question is not Question.PROGRAM or sees_devices({})):
        return DEVICE
    return SHAPES if trial.question is Question.SHAPES else ONCE


def needs_kernels(trial: Trial) -> bool:
    """Whether a trial may get as far as the C++ compiler.

    Not where it is decided by the time its graph is lowered, nor with a backend that has nothing to do with Inductor.

    >>> from torchsleuth.core.cases.record import CompileSettings
    >>> mine = CompileSettings(backend="mine")
    >>> needs_kernels(Trial("", Signature("crash", "run"), mine, embedded="def mine(gm, inputs): ..."))
    False
    """
    expected = trial.expected
    if trial.question is Question.PROGRAM:
        return expected.kind != "capture_error" and not trial.change.uncompiled
    if trial.question is not Question.FAILS:
        return False
    if trial.settings.backend != "inductor" and not _INDUCTOR.search(trial.embedded):
        return False
    if not (trial.stop_early and expected.kind == "compile_error"):
        return True
    # It loads torch, which a process that asks nothing of the kind has no other need of.
    from torchsleuth.torch_internals.compile_stages import failing_stage

    return failing_stage(expected.exceptions, expected.frames) not in ("joint", "lowering")
