"""A process with torch loaded, from which others are forked: scripts, the search host, the server of the trials.

Loading torch and its compiler takes three to four seconds of a processor; that is done once, before anyone needs it.
The process runs nothing itself (`trials.interpreter` is its inside). It sees no accelerator, as what has looked at
one cannot be forked; a script in a fork of it sees none either.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from torchsleuth.core.processes.child import Child, Closed, Process, scratch
from torchsleuth.core.processes.starting import (
    fresh_environment,
    python_command,
    sees_devices,
    without_devices,
)
from torchsleuth.core.processes.tree import (
    TOKEN,
    UNMARKED,
    descendants_of,
    marked,
    send,
    started_at,
)
from torchsleuth.core.protocol.frames import Become, BrokenFrame, Ended, Forked, Frames, Join, Kill, frame

POLL_SECONDS = 0.02
# For a killed process to be gone, so that nothing writes into its folder any more.
GONE_SECONDS = 5.0
# numpy's own threads would be forked.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
INSIDE = "torchsleuth.child.interpreter"


class PreparedInterpreter(Closed):
    """An interpreter with torch loaded: `with PreparedInterpreter() as prepared: prepared.fork_call(...)`.

    `environment` is that of the person's program. Another process joins the one that is there by a socket that
    `join` made: `PreparedInterpreter.joined(socket, environment)`.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._scratch = tempfile.mkdtemp(dir=scratch())
        self._set_up(environment)
        self._control, theirs = socket.socketpair()
        self._process: Child | None = Child(
            python_command(sys.executable, INSIDE, theirs.fileno()),
            environment={
                **self._started_with,
                "TORCHINDUCTOR_CACHE_DIR": os.path.join(self._scratch, "unused"),
            },
            stdout=Path(self._scratch, "log"),
            stderr=Path(self._scratch, "log"),
            handed=[theirs.fileno()],
            tied=False,
        )
        theirs.close()

    @classmethod
    def joined(cls, control: socket.socket, environment: Mapping[str, str]) -> Self:
        """The interpreter at the other end of a socket, which someone else started and will end."""
        made = cls.__new__(cls)
        made._control, made._process, made._scratch = control, None, ""
        made._set_up(environment)
        return made

    def _set_up(self, environment: Mapping[str, str] | None) -> None:
        self._environment = dict(os.environ if environment is None else environment)
        self._lock = threading.Lock()
        self._frames: Frames[Forked | Ended] = Frames(Forked, Ended)
        self._codes: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._numbers = 0
        # What the interpreter was started with; a fork of it gets back what the person had.
        made = fresh_environment(self._environment, Path(self._scratch, "unused"))
        self._started_with = {**marked(made, UNMARKED), **_ONE_THREAD, **without_devices()}
        self.closed = False

    @property
    def hides_devices(self) -> bool:
        """Whether a script that is forked here sees less than it would by itself: there is a device."""
        return sees_devices(self._environment)

    @property
    def how_it_ended(self) -> str | None:
        """How the interpreter ended and what it said last; None while it is there, or where someone else started it."""
        if self._process is None or (code := self._process.poll()) is None:
            return None
        said = Path(self._scratch, "log").read_text(encoding="utf-8", errors="replace").strip()
        return f"status {code}" + (f", {said.splitlines()[-1][:200]}" if said else "")

    def join(self) -> socket.socket:
        """One end of a socket over which another process may ask for forks; those end when it is closed."""
        ours, theirs = socket.socketpair()
        self._say(Join(), [theirs])
        theirs.close()
        return ours

    def fork_script(
        self,
        script: Path,
        arguments: Sequence[str],
        out: Path,
        err: Path,
        cache: Path,
        environment: Mapping[str, str] | None = None,
    ) -> ForkedProcess:
        """Forks a process that goes on as `python script arguments` would, with more variables in its `environment`;
        raises `NotThere` where it cannot."""
        restored = (*_ONE_THREAD, *(() if self.hides_devices else without_devices()), TOKEN)
        changed = {name: self._environment.get(name) for name in restored}
        order = Become(
            self._next_number(),
            str(out),
            str(err),
            tuple(arguments),
            {**changed, "TORCHINDUCTOR_CACHE_DIR": str(cache), **(environment or {})},
            script=str(script.absolute()),
        )
        return self._forked(order)

    def fork_call(
        self,
        call: str,
        arguments: Sequence[str],
        controls: Sequence[socket.socket],
        environment: Mapping[str, str],
        log: Path,
    ) -> ForkedProcess:
        """Forks a process that calls `call(["--control=N", ..., *arguments])`, N being its copies of `controls`."""
        gone = {name: None for name in self._started_with if name not in environment}
        order = Become(
            self._next_number(),
            str(log),
            str(log),
            tuple(arguments),
            {**gone, **environment},
            call=call,
            descriptors=len(controls),
        )
        return self._forked(order, controls)

    def close(self) -> None:
        """Ends the interpreter and everything that was forked from it."""
        self.closed = True
        below = {} if self._process is None else {p: started_at(p) for p in descendants_of(self._process.pid)}
        self._control.close()
        if self._process is not None:
            if below:  # it ends them itself, and what they started meanwhile
                self._process.ended_within(GONE_SECONDS)
            self._process.end()
            for pid, started in below.items():
                if started_at(pid) == started:
                    send(pid, signal.SIGKILL)
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _next_number(self) -> int:
        with self._lock:
            self._numbers += 1
            return self._numbers

    def _forked(self, order: Become, handed: Sequence[socket.socket] = ()) -> ForkedProcess:
        self._say(order, handed)
        return ForkedProcess(self, order.number)

    def _say(self, message: Join | Become | Kill, handed: Sequence[socket.socket] = ()) -> None:
        data = frame(message)
        try:
            with self._lock:
                numbers = [each.fileno() for each in handed]
                sent = socket.send_fds(self._control, [data], numbers) if numbers else 0
                self._control.sendall(data[sent:])
        except OSError as error:
            raise NotThere from error

    def _code(self, number: int) -> int | None:
        """How a forked process ended, if it has; an interpreter that is gone can tell nothing."""
        with self._lock:
            try:
                self._control.setblocking(False)
                while data := self._control.recv(1 << 16):
                    for message in self._frames.feed(data):
                        if isinstance(message, Ended):
                            self._codes[message.number] = message.code
                        else:
                            self._pids[message.number] = message.pid
                if number not in self._codes:
                    raise NotThere
            except BlockingIOError:
                self._control.setblocking(True)
            except (OSError, BrokenFrame) as error:
                raise NotThere from error
            return self._codes.get(number)


class NotThere(Exception):
    """The interpreter that was to be forked is gone."""


def begin_call(
    prepared: PreparedInterpreter | None,
    call: str,
    arguments: Sequence[str],
    control: socket.socket,
    environment: Mapping[str, str],
    log: Path,
    *,
    joins: bool = False,
    python: str = sys.executable,
) -> Process:
    """A process that calls `call(["--control=N", *arguments])`, forked where there is an interpreter for it, else
    started; with `joins` a fork gets a second control, for forks of its own. Closes `control`, which it has then.
    """
    with control, contextlib.ExitStack() as stack:
        try:
            if prepared is None:
                raise NotThere
            controls = [control, *([stack.enter_context(prepared.join())] if joins else [])]
            return prepared.fork_call(call, arguments, controls, environment, log)
        except NotThere:
            return Child(
                python_command(python, call.partition(":")[0], f"--control={control.fileno()}", *arguments),
                environment=environment,
                stdout=log,
                stderr=log,
                handed=[control.fileno()],
                tied=False,
            )


class ForkedProcess:
    """A process forked from that interpreter; used as a `Child` is."""

    def __init__(self, prepared: PreparedInterpreter, number: int) -> None:
        self._prepared = prepared
        self.number = number
        self._ended: int | None = None

    @property
    def pid(self) -> int | None:
        """Its number, once it was heard of; `poll` listens."""
        return self._prepared._pids.get(self.number)

    def poll(self) -> int | None:
        """Its exit status once it has ended; raises `NotThere` where that cannot be known any more."""
        if self._ended is None:
            self._ended = self._prepared._code(self.number)
        return self._ended

    def wait(self, timeout: float | None = None) -> int:
        """How it ended; raises `subprocess.TimeoutExpired` where it takes longer."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with contextlib.suppress(NotThere):
            while (code := self.poll()) is None:
                if deadline is not None and time.monotonic() > deadline:
                    raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
                time.sleep(POLL_SECONDS)
            return code
        return 0

    def end(self) -> None:
        """Ends it and everything in its session, and waits until it is gone."""
        if self._ended is None:
            with contextlib.suppress(NotThere, subprocess.TimeoutExpired):  # it went with its parent
                self._prepared._say(Kill(self.number))
                self.wait(GONE_SECONDS)
