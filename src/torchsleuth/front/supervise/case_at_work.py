"""A case on its way down the road: its folder as it stands, the processes that work on it, and until when.

`write` is the one place of the front that changes a case.json: steps say what they found, and it is there for the next.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchsleuth.core.cases.folder import CaseFolder, open_case, update_case, working_on
from torchsleuth.core.cases.model import Case
from torchsleuth.core.cases.record import read_record
from torchsleuth.core.changes import NOTHING, Change
from torchsleuth.core.processes.limits import seconds_of_a_hang
from torchsleuth.core.processes.prepared import PreparedInterpreter
from torchsleuth.core.processes.starting import sanitizing
from torchsleuth.core.protocol.steps import Done, Order, Seen
from torchsleuth.front.supervise.host import SearchHost
from torchsleuth.front.supervise.program_runs import Program, Say, nobody, program_of
from torchsleuth.front.supervise.scripts import PHASE_SECONDS, ScriptRun, ScriptRunner
from torchsleuth.torch_core.repro.program import PROGRAM
from torchsleuth.torch_core.repro.script import ends_by_itself

# In a case, where all steps that try something keep kernels and answers, so that each finds those of the others.
WORK = "minify"
ORIGINAL = "original.py"
# The script of another level while it is tried; it finds the kept inputs where it lies.
OTHER_LEVEL = "original-other-level.py"

# A script ends by itself after the clock it has, or four times that on a busy machine.
PATIENCE = 5.0

# Triton compiles a kernel in half a second. The processes that Inductor keeps for that take longer to start, and to
# end: 9 of the 27 s of a small program (H200, torch 2.11).
ONE_THREAD = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}

Follow = Callable[[Seen], None]


@dataclass(frozen=True)
class Processes:
    """What works on one case: runs of its scripts, and the search host; no host where nothing is searched."""

    scripts: ScriptRunner = field(default_factory=ScriptRunner)
    host: SearchHost | None = None


@contextlib.contextmanager
def processes_for(
    folder: CaseFolder | None, workers: str | None, python: str | None = None
) -> Iterator[Processes]:
    """The processes for one case, which load torch while something else is waited for.

    Used as `with processes_for(folder, "2") as processes: blame(CaseAtWork(folder, processes, until, print), 60)`.
    """
    with contextlib.ExitStack() as stack:
        if folder is not None:
            stack.enter_context(working_on(folder))
            if folder.has("record.json") and read_record(folder.file("record.json")).settings.sanitized:
                os.environ.update(sanitizing() or {})  # for all that is started for it
        prepared = stack.enter_context(PreparedInterpreter())
        on_cpu = folder is None or folder.case.device == "cpu"
        given = {} if on_cpu else ONE_THREAD
        runner = ScriptRunner(prepared if on_cpu else None, python or sys.executable, given)
        host = None
        if workers is not None:
            work = folder.path / WORK if folder else None
            device = None if on_cpu or folder is None else folder.case.device
            host = stack.enter_context(SearchHost(prepared, workers, work, device=device))
        yield Processes(runner, host)


def phase_clock(case: Case) -> float:
    """Seconds that compiling or running may take in a script of the case; a hang has a clock by its number of calls."""
    if case.kind != "hang":
        return PHASE_SECONDS
    whole = None if case.graph is None else case.graph.calls
    left = whole if case.minified is None or case.minified.calls is None else case.minified.calls
    return seconds_of_a_hang(case.extra.get("timeout"), left)


@dataclass
class CaseAtWork:
    """A case and what works on it: `work = CaseAtWork(folder, processes, time.monotonic() + 60, print)`.

    `note` gets sentences for a person, `follow` what the host tells; `change` is what its program was run with.
    """

    folder: CaseFolder
    processes: Processes
    deadline: float
    note: Say = nobody
    follow: Follow = nobody
    change: Change = NOTHING

    @property
    def case(self) -> Case:
        return self.folder.case

    @property
    def left(self) -> float:
        """Seconds until it is to end."""
        return self.deadline - time.monotonic()

    def say(self, text: str) -> None:
        """A sentence about this case."""
        self.note(f"case {self.case.id}: {text}")

    def write(self, files: Mapping[str, str | Path] | None = None, **sections: Any) -> None:
        """Adds files to the case and replaces sections of case.json: `work.write(triage=Triage("dynamo"))`."""
        self.folder = update_case(self.folder, files, **sections)

    def reopen(self) -> None:
        """Takes what the search host has written."""
        self.folder = open_case(self.folder.path.parent, str(self.folder.path))

    def program(self) -> Program:
        """Its program, as it was run; raises `CannotRunProgram`."""
        known = program_of(self.folder)
        return Program(known.command, known.cwd, self.change)

    def ask(self, name: str, change: Change = NOTHING) -> ScriptRun:
        """Does one of its scripts, with nothing changed or nothing compiled, still fail in a fresh process?

        Of a graph's own script, what without the compiler runs is the graph alone.
        """
        uncompiled = change is not NOTHING
        of_graph = uncompiled and not self.is_a_program and name in (ORIGINAL, OTHER_LEVEL)
        return self.processes.scripts.run(
            self.folder.file(name),
            self.case.signature,
            arguments=("--eager",) if of_graph else (),
            phase_seconds=self._clock_of(name),
            deadline=self.deadline,
            compiles=not uncompiled or of_graph,
        )

    def ask_times(self, name: str, times: int, at_once: int = 1) -> list[ScriptRun]:
        """The same question several times."""
        return self.processes.scripts.run_times(
            self.folder.file(name),
            self.case.signature,
            times,
            at_once=at_once,
            phase_seconds=self._clock_of(name),
            deadline=self.deadline,
        )

    def _clock_of(self, name: str) -> float:
        """What a phase of a script may take; one of a hang that has a clock of its own is let end by itself."""
        hangs = self.case.kind == "hang" and self.folder.has(name)
        own = hangs and ends_by_itself(self.folder.text(name))
        return phase_clock(self.case) * (PATIENCE if own else 1.0)

    @property
    def place(self) -> str:
        """Where its case lies, as orders have it."""
        return str(self.folder.path.absolute())

    def ask_host(self, order: Order, seconds: float, follow: Follow | None = None) -> Done:
        """What came of a step of the search host; raises `StepRefused` or `HostLost`. What it wrote is known then."""
        assert self.processes.host is not None
        try:
            return self.processes.host.ask(order, seconds, said=self.note, heard=follow or self.follow)
        finally:
            self.reopen()

    @property
    def fails_here(self) -> bool:
        """Whether a script of it was seen to fail by itself."""
        return self.case.verified is not None and bool(self.case.verified.reproduced)

    @property
    def is_a_program(self) -> bool:
        """Whether a program stands for it, and no graph."""
        return self.case.graph is None or self.folder.has(PROGRAM)

    @property
    def is_the_programs(self) -> bool:
        """Whether the failure is the program's own, not the compiler's."""
        return self.case.triage is not None and self.case.triage.component == "program"
