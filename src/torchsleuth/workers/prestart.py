"""Runs written scripts in interpreters that were started before the script was known.

Loading torch and its compiler takes three to four seconds of a processor, and a search has that time to spare.
One interpreter is started and loads them; it runs one script itself, and processes forked from it, before anything
ran there, run the others. Each has an empty kernel cache of its own; none of them has anything of the search in it.
"""

from __future__ import annotations

import json
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

from torchsleuth.cases.signature import Signature
from torchsleuth.workers.environment import python_command
from torchsleuth.workers.fresh import (
    PHASE_SECONDS,
    POLL_SECONDS,
    Places,
    Running,
    ScriptRun,
    fresh_environment,
    run_script,
    watched_run,
)
from torchsleuth.workers.processes import kill_group
from torchsleuth.workers.wire import BrokenFrame, Frames, frame

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
        self._itself_used = False
        self._control, theirs = socket.socketpair()
        made = fresh_environment(self._environment, Path(self._scratch, "unused"))
        self._process = subprocess.Popen(
            python_command(sys.executable, "torchsleuth.workers.early", theirs.fileno()),
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**made, **_ONE_THREAD},
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
        """Runs the script `times` times: once in an interpreter started for it, else in forks of one that ran nothing.

        >>> [run.answer for run in early.verify(Path("repro.py"), signature)]
        ['reproduced', 'reproduced', 'reproduced']
        """

        def once(place: int) -> ScriptRun:
            clocks = {"phase_seconds": phase_seconds, "deadline": deadline}
            return self.run(script, expected, forked=place > 0, **clocks)  # type: ignore[arg-type]

        with ThreadPoolExecutor(max(1, min(times, at_once))) as pool:
            return list(pool.map(once, range(times)))

    def run(
        self,
        script: Path,
        expected: Signature,
        *,
        arguments: Sequence[str] = (),
        forked: bool = True,
        phase_seconds: float = PHASE_SECONDS,
        deadline: float | None = None,
    ) -> ScriptRun:
        """Runs the script once: in a fork, or in the interpreter itself, or by a new one where that is gone.

        >>> early.run(Path("original.py"), signature).reproduced
        True
        """

        def begin(places: Places) -> Running:
            order = self._order(script, arguments, places)
            return self._forked(order) if forked else self._itself(order)

        try:
            return watched_run(begin, expected, phase_seconds=phase_seconds, deadline=deadline)
        except _NotThere:
            return run_script(
                script, expected, arguments=arguments, phase_seconds=phase_seconds, deadline=deadline
            )

    def close(self) -> None:
        """Ends the interpreter and everything that it started."""
        self._control.close()
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._process.poll() is None:
            kill_group(self._process.pid)
        self._process.wait()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    def _order(self, script: Path, arguments: Sequence[str], places: Places) -> dict[str, Any]:
        changed = {name: self._environment.get(name) for name in _ONE_THREAD}
        changed["TORCHINDUCTOR_CACHE_DIR"] = str(places.cache)
        return {
            "script": str(script.absolute()),
            "arguments": list(arguments),
            "stdout": str(places.stdout),
            "stderr": str(places.stderr),
            "environment": changed,
        }

    def _itself(self, order: Mapping[str, Any]) -> Running:
        with self._lock:
            used, self._itself_used = self._itself_used, True
        if used or self._process.stdin is None:
            raise _NotThere
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
        except OSError as error:
            raise _NotThere from error
        return _Itself(self._process)

    def _forked(self, order: Mapping[str, Any]) -> Running:
        with self._lock:
            self._numbers += 1
            number = self._numbers
        self._say({**order, "number": number})
        return _Forked(self, number)

    def _say(self, message: Mapping[str, Any]) -> None:
        try:
            with self._lock:
                self._control.sendall(frame(message))
        except OSError as error:
            raise _NotThere from error

    def _code(self, number: int) -> int | None:
        """How a forked script ended, if it has; a server that is gone can tell nothing."""
        with self._lock:
            self._control.setblocking(False)
            try:
                while data := self._control.recv(1 << 16):
                    for message in self._frames.feed(data):
                        if "done" in message:
                            self._codes[message["done"]] = message["code"]
                if number not in self._codes:
                    raise _NotThere
            except BlockingIOError:
                pass
            except (OSError, BrokenFrame) as error:
                raise _NotThere from error
            finally:
                self._control.setblocking(True)
            return self._codes.get(number)


class _NotThere(Exception):
    """The interpreter that was to run the script is gone, or was used before."""


class _Itself:
    """The script in the very interpreter that was started."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def poll(self) -> int | None:
        return self._process.poll()

    def end(self) -> None:
        kill_group(self._process.pid)
        self._process.wait()


class _Forked:
    """The script in a process forked from that interpreter."""

    def __init__(self, home: Prestarted, number: int) -> None:
        self._home = home
        self._number = number
        self._ended: int | None = None

    def poll(self) -> int | None:
        if self._ended is None:
            self._ended = self._home._code(self._number)
        return self._ended

    def end(self) -> None:
        if self._ended is not None:
            return
        self._home._say({"kill": self._number})
        patience = time.monotonic() + GONE_SECONDS
        while self.poll() is None and time.monotonic() < patience:
            time.sleep(POLL_SECONDS)
