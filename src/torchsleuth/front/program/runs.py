"""Runs the user's program again, unchanged, with its compiles overridden: bare, or under watch.

Each run has a kernel cache of its own, gone afterwards: torch keeps compiled graphs by graph and settings, so a run
with an override could answer from one without it, and leave its own kernels to the next. Only a run that is to show
what lies in the program's cache gets that one.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torchsleuth
from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.folder import CaseFolder
from torchsleuth.core.cases.record import read_record
from torchsleuth.core.changes import Change, change_from_environment
from torchsleuth.core.processes.compiler_probes import hand_probes_to
from torchsleuth.core.processes.last_will import ends_with_us, scratch
from torchsleuth.core.processes.tree import descendants_of, end_all, kill_group
from torchsleuth.script_runtime.hiding import HIDDEN_SECRET
from torchsleuth.script_runtime.signature import Signature, signature_from_json

PACKAGE = Path(torchsleuth.__file__).resolve().parent
# How long a program that is told to end may take to do so.
GRACE_SECONDS = 5.0
POLL_SECONDS = 0.2
# Of what a program prints, what is kept to say how it ended.
TAIL_BYTES = 64 << 10


class CannotRunProgram(SleuthError):
    """The program cannot be started again; says why and what to do."""


@dataclass(frozen=True)
class Program:
    """How to start the user's program: `Program(("python", "train.py"), "/home/me")`."""

    command: tuple[str, ...]
    cwd: str | None = None

    @property
    def from_stdin(self) -> bool:
        """Whether Python read the program from its standard input.

        >>> Program(("python", "-")).from_stdin, Program(("python", "train.py", "-")).from_stdin
        (True, False)
        """
        words = [word for word in self.command[1:] if word == "-" or not word.startswith("-")]
        return not words[:1] or words[0] == "-"


@dataclass(frozen=True)
class ProgramRun:
    """How a run ended. `status` is 128+N where signal N ended it; `tail` is the end of what it wrote to stderr."""

    status: int
    seconds: float
    timed_out: bool = False
    tail: str = ""
    cases: tuple[Mapping[str, Any], ...] = ()

    @property
    def healthy(self) -> bool:
        return self.status == 0 and not self.timed_out

    @property
    def last_word(self) -> str:
        """The type of the error it ended with: `AssertionError`; empty where there is none.

        >>> ProgramRun(1, 0.1, tail="Traceback ...\\nValueError: no").last_word
        'ValueError'
        """
        for line in reversed(self.tail.splitlines()):
            head = line.partition(":")[0].strip()
            if (
                line[:1].isalpha()
                and head != "torchsleuth"
                and head.replace(".", "").isidentifier()
                and head[-1:].isalnum()
            ):
                return head.rpartition(".")[2]
        return ""

    @property
    def cannot_override(self) -> str:
        """Why the program was ended before it ran with what was asked for; empty where it was not.

        >>> ProgramRun(2, 0.1, tail="torchsleuth: cannot override: this torch has no such thing").cannot_override
        'this torch has no such thing'
        """
        _, found, why = self.tail.rpartition("torchsleuth: cannot override: ")
        return why.splitlines()[0] if found and self.status == 2 else ""

    @property
    def signatures(self) -> list[Signature]:
        """How the failures look that were recorded, where the run was watched."""
        return [signature_from_json(dict(case["signature"])) for case in self.cases]


def program_of(folder: CaseFolder) -> Program:
    """How the program of a case was started; raises `CannotRunProgram` where that is not known or not possible."""
    case = folder.case
    if case.rank is not None:
        raise CannotRunProgram(
            f"case {case.id} is from one rank of a distributed program, which cannot be started by itself; "
            "put the workaround into the program and run it with its launcher"
        )
    try:
        known = case.extra.get("program") or read_record(folder.file("record.json")).program
        command, cwd = [str(word) for word in known["command"]], known["cwd"]
    except (ValueError, KeyError, TypeError):
        raise CannotRunProgram(
            f"case {case.id} does not say how its program was started; record it again with: torchsleuth run"
        ) from None
    if any(HIDDEN_SECRET in word for word in command):
        raise CannotRunProgram(
            f"the command line of the program of case {case.id} held a secret, which is not kept; "
            "put the workaround into the program and run it yourself"
        )
    command, cwd = [os.path.expanduser(word) for word in command], os.path.expanduser(str(cwd or ""))
    if not command or not cwd or not Path(cwd).is_dir():
        raise CannotRunProgram(f"the folder in which the program of case {case.id} ran is not here: {cwd}")
    return Program(tuple(command), cwd)


def run_program(
    program: Program,
    change: Change,
    *,
    timeout: float | None = None,
    stopped: threading.Event | None = None,
) -> ProgramRun:
    """A bare run: only its end is looked at.

    Used as `run_program(Program(("python", "train.py")), Change(backend="sleuth_eager"), timeout=60).healthy`.
    """
    with _changed_environment(change) as changed:
        paths = [str(PACKAGE / "watched" / "inject"), *filter(None, [os.environ.get("PYTHONPATH")])]
        changed.update(PYTHONPATH=os.pathsep.join(paths), TORCHSLEUTH_HOME=str(PACKAGE.parent))
        return run_apart(list(program.command), program.cwd, changed, timeout, stopped)[0]


def watch_program(
    program: Program,
    change: Change,
    *,
    options: Sequence[str] = (),
    timeout: float | None = None,
    cases_dir: Path | None = None,
    record_only: bool = True,
    stopped: threading.Event | None = None,
) -> ProgramRun:
    """A run under watch, with cases for its failures; in a folder that is gone afterwards unless one is given."""
    with (
        _changed_environment(change) as changed,
        tempfile.TemporaryDirectory(dir=scratch()) as gone,
    ):
        cases = str(cases_dir.absolute() if cases_dir is not None else gone)
        ours = [sys.executable, "-P", "-m", "torchsleuth", "run", "--json", "--cases", cases]
        ours += ["--record-only"] if record_only else []
        command = [*ours, *options, "--", *program.command]
        run, stdout = run_apart(command, program.cwd, changed, timeout, stopped)
    try:
        said = json.loads(stdout)
        status, found = int(said["program_status"]), tuple(said["cases"])
    except (ValueError, KeyError, TypeError):
        return run  # ended before it could say anything
    return ProgramRun(status, run.seconds, run.timed_out, run.tail, found)


@contextlib.contextmanager
def _changed_environment(change: Change) -> Iterator[dict[str, str]]:
    # What was asked of us by torch's own names must not start torch's tool of that name.
    ours = ("TORCHSLEUTH_", "TORCHDYNAMO_REPRO_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    # A program that was run with something changed (`sweep`) is run again with that and what is tried.
    wanted = change.over(change_from_environment())
    with tempfile.TemporaryDirectory(dir=scratch()) as cache:
        if not change.own_cache:
            hand_probes_to(Path(cache))
            kept["TORCHINDUCTOR_CACHE_DIR"] = cache
        yield {**kept, **wanted.to_environment()}


def compile_cache() -> Path:
    """Where Inductor keeps what it compiled for the programs that are started here.

    >>> compile_cache().name.startswith("torchinductor_") or "TORCHINDUCTOR_CACHE_DIR" in os.environ
    True
    """
    given = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if given:
        return Path(given)
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # in a container the number of a user may have no name
        user = str(os.getuid())
    return Path(tempfile.gettempdir()) / ("torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user))


def run_apart(
    command: list[str],
    cwd: str | None,
    environment: Mapping[str, str],
    timeout: float | None = None,
    stopped: threading.Event | None = None,
) -> tuple[ProgramRun, str]:
    """Runs in a session of its own, so that everything it started ends with it, or with us; also what it printed.

    A run that is waited for in a thread is ended by `stopped`, as no Ctrl-C arrives there.
    """
    started = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            child = subprocess.Popen(
                command,
                cwd=cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        except OSError as error:
            raise CannotRunProgram(f"the program cannot be started ({error})") from error
        timed_out = False
        over = ends_with_us(child.pid)
        try:
            timed_out = not _ended(child, timeout, stopped)
        finally:
            _end(child)
            over()
        code = child.wait()
        seconds = round(time.monotonic() - started, 2)
        status = 128 - code if code < 0 else code
        return ProgramRun(status, seconds, timed_out, _tail(err)), _tail(out, 64 << 20)


def _ended(child: subprocess.Popen[bytes], timeout: float | None, stopped: threading.Event | None) -> bool:
    """Waits for its end; False where the time is over or somebody has stopped it."""
    until = None if timeout is None else time.monotonic() + timeout
    while until is None or time.monotonic() < until:
        left = None if until is None else max(0.0, until - time.monotonic())
        try:
            child.wait(left if stopped is None else min(POLL_SECONDS, POLL_SECONDS if left is None else left))
            return True
        except subprocess.TimeoutExpired:
            if stopped is not None and stopped.is_set():
                break
    return False


def _end(child: subprocess.Popen[bytes]) -> None:
    """Asked first, killed after a moment, with all that is left of its session."""
    if child.poll() is None:
        end_all([child.pid, *descendants_of(child.pid)], GRACE_SECONDS)
    kill_group(child.pid)


def _tail(file: BinaryIO, most: int = TAIL_BYTES) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - most))
    return file.read().decode("utf-8", errors="replace")
