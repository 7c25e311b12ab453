"""An oracle that runs programs: each in a process of its own, and, where it fails as wanted, once more uncompiled.

A program that fails without the compiler, too, shows another bug than one that did not.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path

from torchsleuth.core.change_table import UNCOMPILED
from torchsleuth.core.changes import NOTHING, Change
from torchsleuth.core.criteria import SAME_PLACE, difference_to_eager, types_shown
from torchsleuth.core.processes.limits import Limits
from torchsleuth.core.protocol.trials import Outcome, Question, Trial
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.search.minify.contract import Oracle
from torchsleuth.search.minify.python.program import Program
from torchsleuth.search.workers.queue import TrialQueue

# A smaller program that takes this much longer than the whole one goes round in circles; so does one that computes so
# much longer, and that is seen sooner.
LEAST_CLOCK = 10.0
SLACK = 10.0
LEAST_CPU = 0.5
CPU_SLACK = 4.0
# Where a program is said to lie while it is tried: a name, no file.
SCRIPT = "program.py"


@dataclass
class ProgramOracle(Oracle):
    """Asks trials whether programs fail as `expected`; with `eager_passes` they must not do so uncompiled.

    `folder` is where the programs are said to lie; `clock` is what one run may take, `cpu` what it may compute.
    """

    workers: TrialQueue
    expected: Signature
    folder: Path
    eager_passes: bool = True
    clock: float | None = None
    cpu: float | None = None
    # What the last program that failed printed as its traceback.
    text: str = ""
    trial_seconds: float = 0.0
    others: dict[str, str] = field(default_factory=dict)

    def __call__(self, states: Sequence[Program]) -> list[bool | None]:
        return self._answers(states, every=self.failing_is_slow is False)

    @property
    def failing_is_slow(self) -> bool:
        """Whether it takes longer to see a failure than to see none."""
        return self.expected.kind == "hang"

    def _answers(self, programs: Sequence[Program], every: bool) -> list[bool | None]:
        # Where capture fails nothing has to be compiled to see it.
        captures = self.expected.phase == "capture"
        change = Change(capture_only=captures)
        tickets = [self._submit(program, change) for program in programs]
        answers: list[bool | None] = []
        for program, ticket in zip(programs, tickets):
            if True in answers and not every:
                ticket.cancel()
                answers.append(None)
                continue
            outcome = ticket.result()
            self.trial_seconds += outcome.seconds
            answers.append(self._holds(program, outcome))
            if answers[-1]:
                self.text = outcome.text
        return answers

    def _holds(self, program: Program, outcome: Outcome) -> bool:
        """Whether a run of a program shows what is looked for, and a run without the compiler does not."""
        return self._fails(outcome) and (not self.eager_passes or self.passes_uncompiled(program))

    def _submit(self, program: Program, change: Change, fill: int = 0) -> Future[Outcome]:
        trial = trial_of(program.text, self.expected, self.folder, change, fill)
        return self.workers.submit(trial, limits=limited(self.workers.limits, self.clock, self.cpu))

    def _fails(self, outcome: Outcome) -> bool:
        seen = outcome.signature
        if seen is None:
            return False
        if SAME_PLACE.same(self.expected, seen):
            return True
        self.others.setdefault(seen.summary, outcome.text)
        return False

    def passes_uncompiled(self, program: Program) -> bool:
        """Whether a program passes when nothing of it is compiled."""
        outcome = self._submit(program, UNCOMPILED).result()
        self.trial_seconds += outcome.seconds
        return outcome.signature is None and outcome.error is None


@dataclass
class DifferenceOracle(ProgramOracle):
    """Asks whether what programs hold as wrong is different without the compiler, which twice comes to the same.

    The last line of a program says what that is, and stays as it is: `shows`. The types of what it holds stay, too,
    with the compiler and without: where a tensor became a function that is called otherwise, another bug is shown.
    """

    shows: str = ""
    # As the first program had them, which is the whole one.
    types: tuple[list[str], list[str]] | None = None

    def _holds(self, program: Program, outcome: Outcome) -> bool:
        if last_line(program.text) != self.shows:
            return False
        found = difference_to_eager(
            outcome.seen.wrong, lambda fill: self._submit(program, UNCOMPILED, fill).result().seen.wrong
        )
        if found is None:
            return False
        types = types_shown(found[0]), types_shown(found[1])
        self.types = self.types or types
        return types == self.types


def last_line(text: str) -> str:
    """The last line of a program, however far in: `last_line("a = 1\\nb = 2\\n") == "b = 2"`."""
    return text.rstrip().rpartition("\n")[2].lstrip()


def trial_of(text: str, expected: Signature, folder: Path, change: Change = NOTHING, fill: int = 0) -> Trial:
    """The question that a program stands for: `trial_of(text, expected, folder, UNCOMPILED)`."""
    return Trial(
        text,
        expected,
        change=change,
        fill=fill,
        store=str(folder / SCRIPT),
        question=Question.PROGRAM,
    )


def limited(limits: Limits, clock: float | None, cpu: float | None = None) -> Limits:
    """The limits of a trial that may run and compute so long: `limited(Limits(), 20.0).run == 20.0`."""
    return replace(limits, run=limits.run if clock is None else clock, cpu=cpu)


def cpu_for(runs: Sequence[Outcome]) -> float:
    """What a smaller program may compute, by what runs of the whole one did: `cpu_for([first, uncompiled])`."""
    return max(LEAST_CPU, CPU_SLACK * max(run.seen.cpu for run in runs))
