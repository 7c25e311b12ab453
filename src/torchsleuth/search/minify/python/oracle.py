"""An oracle that runs programs: each in a process of its own, and, where it fails as wanted, once more uncompiled.

A program that fails without the compiler, too, shows another bug than one that did not.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path

from torchsleuth.core.cases.record import WRONG
from torchsleuth.core.change_table import UNCOMPILED
from torchsleuth.core.changes import NOTHING, Change
from torchsleuth.core.criteria import SAME_PLACE, difference_to_eager
from torchsleuth.core.processes.limits import Limits
from torchsleuth.core.protocol.trials import Outcome, Question, Trial
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.search.minify.case_state import CannotMinify
from torchsleuth.search.minify.oracle import AsksTrials
from torchsleuth.search.minify.python.program import Program
from torchsleuth.search.minify.states import Questions
from torchsleuth.search.workers.queue import TrialQueue

# A smaller program that takes this much longer than the whole one goes round in circles; so does one that computes so
# much longer, and that is seen sooner.
LEAST_CLOCK = 10.0
SLACK = 10.0
LEAST_CPU = 0.5
CPU_SLACK = 4.0
# Of the time for everything, what the first run may take before it counts as a hang.
FIRST_RUN = 0.25
# In a program whose calls are recorded: what each run of one call left, as text.
RESULTS = "results"
# Where a program seems to lie while it is tried: a name, no file.
SCRIPT = "program.py"


@dataclass
class ProgramOracle(AsksTrials[Program]):
    """Asks trials whether programs fail as `expected`; with `eager_passes` they must not do so uncompiled.

    `folder` is where the programs seem to lie; `clock` is what one run may take, `cpu` what it may compute.
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
        return self.each(states)

    def submit(self, state: Program) -> Future[Outcome]:
        # Where capture fails nothing has to be compiled to see it.
        return self.run(state, Change(capture_only=self.expected.phase == "capture"))

    def run(self, program: Program, change: Change, fill: int = 0) -> Future[Outcome]:
        """Asks for a run of a program: `oracle.run(program, UNCOMPILED).result()`."""
        trial = trial_of(program.text, self.expected, self.folder, change, fill)
        return self.workers.submit(trial, limits=limited(self.workers.limits, self.clock, self.cpu))

    def judge(self, outcome: Outcome, state: Program) -> bool:
        self.trial_seconds += outcome.seconds
        failed = self.holds(state, outcome)
        if failed:
            self.text = outcome.text
        return failed

    def holds(self, program: Program, outcome: Outcome) -> bool:
        """Whether a run of a program shows what is looked for, and a run without the compiler does not."""
        seen = outcome.signature
        if seen is None:
            return False
        if not SAME_PLACE.same(self.expected, seen):
            self.others.setdefault(seen.summary, outcome.text)
            return False
        if not self.eager_passes:
            return True
        uncompiled = self.run(program, UNCOMPILED).result()
        self.trial_seconds += uncompiled.seconds
        return uncompiled.signature is None and uncompiled.error is None


@dataclass
class DifferenceOracle(ProgramOracle):
    """Asks whether what programs hold as wrong is different without the compiler, which twice comes to the same.

    The last line of a program says what that is, and stays as it is: `shows`. The types of what it holds stay, too,
    with the compiler and without: where a tensor became a function that is called otherwise, another bug is shown.
    """

    shows: str = ""
    # As the first program had them, which is the whole one.
    types: tuple[list[str], list[str]] | None = None
    # Of programs whose calls are recorded, which of these is the first that is wrong.
    numbers: dict[str, int] = field(default_factory=dict)

    def holds(self, program: Program, outcome: Outcome) -> bool:
        """Whether what a program holds as wrong is different without the compiler, and of the same types."""
        if last_line(program.text) != self.shows:
            return False
        found = difference_to_eager(
            outcome.seen.wrong, lambda fill: self.run(program, UNCOMPILED, fill).result().seen.wrong
        )
        if found is None:
            return False
        if self.shows == f"{WRONG} = {RESULTS}":  # fewer calls may be left
            number, found = first_difference(*found)
            self.numbers[program.text] = number
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


def run_whole(
    questions: Questions, text: str, clock: float, change: Change = NOTHING, fill: int = 0
) -> Outcome:
    """A run of a whole program, of which nothing in particular is expected: `run_whole(questions, text, 60.0)`."""
    trial = trial_of(text, Signature("runtime_error", "run"), questions.store, change, fill)
    outcome = questions.workers.run(trial, limits=limited(questions.workers.limits, clock), fresh=True)
    if outcome.error is not None:
        raise CannotMinify(f"the script cannot be tried here: {outcome.error}")
    return outcome


def limited(limits: Limits, clock: float | None, cpu: float | None = None) -> Limits:
    """The limits of a trial that may run and compute so long: `limited(Limits(), 20.0).run == 20.0`."""
    return replace(limits, run=limits.run if clock is None else clock, cpu=cpu)


def cpu_for(runs: Sequence[Outcome]) -> float:
    """What a smaller program may compute, by what runs of the whole one did: `cpu_for([first, uncompiled])`."""
    return max(LEAST_CPU, CPU_SLACK * max(run.seen.cpu for run in runs))


def first_difference(compiled: str, uncompiled: str) -> tuple[int, tuple[str, str]]:
    """Of two lists of results, as programs show them, the first that differ: which, and the types they begin with.

    >>> first_difference(str(["str '[3]'", "str '[None]'"]), str(["str '[3]'", "str '[tensor(1.)]'"]))
    (2, ("['None 0']", "['tensor 0']"))
    """
    try:
        pairs = zip(*(ast.literal_eval(each) for each in (compiled, uncompiled)))
    except (SyntaxError, ValueError):
        return 1, (compiled, uncompiled)
    number, one, other = next(((n, a, b) for n, (a, b) in enumerate(pairs, 1) if a != b), (1, "", ""))
    begins = [re.sub(r"^str .\[([a-zA-Z_]*).*", r"\1", each, flags=re.DOTALL) for each in (one, other)]
    return number, (f"['{begins[0]} 0']", f"['{begins[1]} 0']")


def types_shown(held: str) -> list[str]:
    """The types of what a program holds, by the text that shows it (`child/program.py`); they stay as it gets smaller.

    >>> types_shown("['Tensor tensor([1.])', 'int 3']")
    ['Tensor', 'int']
    """
    try:
        return [each.partition(" ")[0] for each in ast.literal_eval(held)]
    except (SyntaxError, ValueError):
        return [held]
