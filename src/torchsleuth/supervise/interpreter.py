"""Runs written scripts in interpreters that were started before the script was known.

Loading torch and its compiler takes three to four seconds of a processor, and a search has that time to spare.
One interpreter is started and loads them; it runs nothing itself, and a process forked from it runs each script.
Each has an empty kernel cache of its own; none of them has anything of the search in it.
The server of the trials may be forked from it as well: then torch is loaded once less.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torchsleuth.processes.frames import BrokenFrame, Frames, frame
from torchsleuth.processes.tree import TOKEN, UNMARKED, kill_group, marked
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.supervise.scripts import (
    PHASE_SECONDS,
    POLL_SECONDS,
    Places,
    Running,
    ScriptRun,
    fresh_environment,
    run_script,
    watched_run,
)
from torchsleuth.trials.environment import python_command

# For a killed process to be gone, so that nothing writes into its folder any more.
GONE_SECONDS = 5.0
# numpy's own threads would be forked.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}


class Prestarted:
    """An interpreter with torch loaded, for the scripts to come: `with Prestarted() as early: early.verify(...)`."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = dict(os.environ if environment is None else environment)
        self._scratch = tempfile.mkdtemp(prefix="torchsleuth-")
        self._lock = threading.Lock()
        self._frames = Frames()
        self._codes: dict[int, int] = {}
        self._numbers = 0
        self._given_up = False
        self._scripts: set[int] = set()
        self._control, theirs = socket.socketpair()
        made = fresh_environment(self._environment, Path(self._scratch, "unused"))
        self._started_with = {**marked(made, UNMARKED), **_ONE_THREAD}
        self._process = subprocess.Popen(
            python_command(sys.executable, "torchsleuth.trials.prepared", theirs.fileno()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self._started_with,
            start_new_session=True,
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()

    def verify(
        self,
        script: Path,
        expected: Signature,
        times: int = 3,
        *,
        at_once: int = 3,
        phase_seconds: float = PHASE_SECONDS,
        deadline: float | None = None,
    ) -> list[ScriptRun]:
        """Runs the script `times` times, each in a fork of an interpreter that ran nothing.

        >>> [run.answer for run in early.verify(Path("repro.py"), signature)]
        ['reproduced', 'reproduced', 'reproduced']
        """

        def once(_: int) -> ScriptRun:
            return self.run(script, expected, phase_seconds=phase_seconds, deadline=deadline)

        with ThreadPoolExecutor(max(1, min(times, at_once))) as pool:
            return list(pool.map(once, range(times)))

    def run(
        self,
        script: Path,
        expected: Signature,
        *,
        arguments: Sequence[str] = (),
        phase_seconds: float = PHASE_SECONDS,
        deadline: float | None = None,
    ) -> ScriptRun:
        """Runs the script once: in a fork, or by a new interpreter where ours is gone.

        >>> early.run(Path("original.py"), signature).reproduced
        True
        """

        def begin(places: Places) -> Running:
            order = self._order(script, arguments, places)
            if self._given_up:
                raise _NotThere
            process = self._forked(order)
            self._scripts.add(process.number)
            return process

        try:
            return watched_run(begin, expected, phase_seconds=phase_seconds, deadline=deadline)
        except _NotThere:
            if self._given_up:
                return ScriptRun("cannot_tell", "it was stopped", 0.0)
            return run_script(
                script, expected, arguments=arguments, phase_seconds=phase_seconds, deadline=deadline
            )

    def start_server(
        self,
        call: str,
        arguments: Sequence[str],
        control: socket.socket,
        environment: Mapping[str, str],
        log: Path,
    ) -> Forked:
        """Forks a process that calls `call(["--control=N", *arguments])`, where N is its copy of `control`."""
        gone = {name: None for name in self._started_with if name not in environment}
        order = {
            "call": call,
            "arguments": list(arguments),
            "stdout": str(log),
            "stderr": str(log),
            "environment": {**gone, **environment},
        }
        return self._forked(order, control)

    def give_up(self) -> None:
        """Ends the scripts that run and runs no more of them; a server forked from here goes on."""
        self._given_up = True
        for number in list(self._scripts):
            Forked(self, number).kill()

    def close(self) -> None:
        """Ends the interpreter and everything that it started."""
        self._given_up = True
        self._control.close()
        if self._process.poll() is None:
            kill_group(self._process.pid)
        self._process.wait()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    def _order(self, script: Path, arguments: Sequence[str], places: Places) -> dict[str, Any]:
        changed = {name: self._environment.get(name) for name in (*_ONE_THREAD, TOKEN)}
        changed["TORCHINDUCTOR_CACHE_DIR"] = str(places.cache)
        return {
            "script": str(script.absolute()),
            "arguments": list(arguments),
            "stdout": str(places.stdout),
            "stderr": str(places.stderr),
            "environment": changed,
        }

    def _forked(self, order: Mapping[str, Any], handed: socket.socket | None = None) -> Forked:
        with self._lock:
            self._numbers += 1
            number = self._numbers
        self._say({**order, "number": number}, handed)
        return Forked(self, number)

    def _say(self, message: Mapping[str, Any], handed: socket.socket | None = None) -> None:
        data = frame(message)
        try:
            with self._lock:
                sent = socket.send_fds(self._control, [data], [handed.fileno()]) if handed else 0
                self._control.sendall(data[sent:])
        except OSError as error:
            raise _NotThere from error

    def _code(self, number: int) -> int | None:
        """How a forked script ended, if it has; a server that is gone can tell nothing."""
        with self._lock:
            try:
                self._control.setblocking(False)
                while data := self._control.recv(1 << 16):
                    for message in self._frames.feed(data):
                        if "done" in message:
                            self._codes[message["done"]] = message["code"]
                if number not in self._codes:
                    raise _NotThere
            except BlockingIOError:
                self._control.setblocking(True)
            except (OSError, BrokenFrame) as error:
                raise _NotThere from error
            return self._codes.get(number)


class _NotThere(Exception):
    """The interpreter that was to run the script is gone, or runs no more of them."""


class Forked:
    """A process forked from that interpreter: a script, or a server; used as `Popen` is."""

    def __init__(self, home: Prestarted, number: int) -> None:
        self._home = home
        self.number = number
        self._ended: int | None = None

    def poll(self) -> int | None:
        if self._ended is None:
            self._ended = self._home._code(self.number)
        return self._ended

    def wait(self, timeout: float | None = None) -> int:
        """How it ended; raises `subprocess.TimeoutExpired` where it takes longer."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self._gone()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
            time.sleep(POLL_SECONDS)
        return code

    def kill(self) -> None:
        """Ends it and everything in its session."""
        try:
            self._home._say({"kill": self.number})
        except _NotThere:  # it went with its parent
            pass

    def end(self) -> None:
        """Ends it and waits until it is gone."""
        if self._ended is None:
            self.kill()
            try:
                self.wait(GONE_SECONDS)
            except subprocess.TimeoutExpired:
                pass

    def _gone(self) -> int | None:
        try:
            return self.poll()
        except _NotThere:
            return 0
