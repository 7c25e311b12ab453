"""A recorded frame run again in a fresh process: the function with its arguments, nothing of the program around it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.folder import CaseFolder
from torchsleuth.core.criteria import SAME, Answer
from torchsleuth.core.processes.child import Child, scratch
from torchsleuth.core.processes.starting import fresh_environment, python_command
from torchsleuth.core.protocol.failures import signature_of_crash
from torchsleuth.script_runtime.signature import Signature, signature_from_json
from torchsleuth.torch_core.repro.program import PROGRAM

REPLAY = "torchsleuth.child.program"
# Under a debugger Dynamo's own frames are what there is to see.
_ALL_FRAMES = {"TORCHDYNAMO_VERBOSE": "1"}


class NoFrame(SleuthError):
    """The case holds no recorded frame; says what it holds instead."""


@dataclass(frozen=True)
class Replay:
    """How a frame ended when it was run again; `seen` is None where nothing failed."""

    answer: Answer
    seen: Signature | None
    seconds: float

    @property
    def summary(self) -> str:
        """The failure in one line: `replay_case(folder).summary`."""
        return "nothing failed" if self.seen is None else self.seen.summary


def replay_case(
    folder: CaseFolder,
    *,
    eager: bool = False,
    debugger: bool = False,
    timeout: float | None = None,
    output: IO[bytes] | None = None,
) -> Replay:
    """Runs the frame of a case; what it prints goes to `output`, or where this process prints.

    `eager` compiles nothing; with `debugger` Python's own starts where it fails, or, with both, at the call. Executes
    what is in the case. Raises `NoFrame` where there is none.
    """
    if not folder.has(PROGRAM):
        why = folder.case.no_repro or "it has a graph instead: python original.py, or torchsleuth verify"
        raise NoFrame(f"case {folder.case.id} holds no recorded frame: {why}")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=scratch()) as gone:
        answer = Path(gone, "answer.json")
        program = folder.file(PROGRAM).absolute()
        more = [word for word, wanted in (("--eager", eager), ("--pdb", debugger)) if wanted]
        child = Child(
            python_command(sys.executable, REPLAY, program, f"--answer={answer}", *more),
            environment={
                **fresh_environment(os.environ, Path(gone, "cache")),
                **(_ALL_FRAMES if debugger else {}),
            },
            stdout=output,
            apart=not debugger,  # which needs the terminal
        )
        try:
            status = child.wait(timeout)
            told = json.loads(answer.read_text()) if answer.is_file() else None
            seen = signature_from_json(told) if told else None
            if not answer.is_file() and status:
                seen = signature_of_crash(status, "run")
        except subprocess.TimeoutExpired:
            seen = Signature("hang", "run")
        finally:
            child.send(signal.SIGKILL)
            child.end()
    return Replay(SAME.answer(folder.case.signature, seen), seen, round(time.monotonic() - started, 2))
