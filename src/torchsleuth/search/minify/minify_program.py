"""`minify` of a case that is a whole program: it is run to know how it fails here, and made smaller as Python text.

Every smaller program is on disk at once, as a script that says in its last line whether it fails the same way.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from torchsleuth.core.cases.folder import CaseFolder, update_case
from torchsleuth.core.cases.model import Case, Minified
from torchsleuth.core.change_table import UNCOMPILED
from torchsleuth.core.changes import NOTHING, Change
from torchsleuth.core.criteria import SAME, difference_to_eager, last_word_of
from torchsleuth.core.processes.child import Child
from torchsleuth.core.protocol.steps import CHECKPOINTS, REPRO, CheckOrder, ScriptToVerify, Verification
from torchsleuth.core.protocol.trials import Outcome
from torchsleuth.script_runtime.signature import Signature, signature_from_json
from torchsleuth.search.minify.case_state import CannotMinify
from torchsleuth.search.minify.contract import Listener
from torchsleuth.search.minify.minify_case import LEFT_FOR_VERIFYING, VERIFY_TIMES, MinifyResult
from torchsleuth.search.minify.python.oracle import (
    FIRST_RUN,
    LEAST_CLOCK,
    SLACK,
    DifferenceOracle,
    ProgramOracle,
    cpu_for,
    last_line,
    run_whole,
)
from torchsleuth.search.minify.python.program import Program, lines_of, parsed
from torchsleuth.search.minify.python.reduce import DoesNotFail, ReducedProgram, reduce_program
from torchsleuth.search.minify.script_cases import standing_alone
from torchsleuth.search.minify.states import Questions
from torchsleuth.search.workers.trial_log import TrialLog, surroundings
from torchsleuth.torch_core.repro.program import PROGRAM, program_script


def is_program(folder: CaseFolder) -> bool:
    """Whether a program stands for a case, and no graph."""
    return folder.file(PROGRAM).is_file()


def minify_program(
    folder: CaseFolder, questions: Questions, follower: Listener, *, budget_seconds: float = 600.0
) -> MinifyResult[ReducedProgram]:
    """Makes the program of a case as small as still fails the same way; `follower` has its script verified."""
    started = time.monotonic()
    workers, case = questions.workers, folder.case
    if workers.log.path is None:  # the workers were there before the case was
        workers.log = TrialLog(folder.file("minify/trials.jsonl"), surroundings(os.environ))
    text = folder.file(PROGRAM).read_text(encoding="utf-8")
    oracle = _oracle_of(case, questions, text, budget_seconds)
    if not oracle.eager_passes:
        follower.said(f"case {case.id}: the program fails without the compiler, too")

    def script(small: str) -> str:
        return program_script(small, _expected(case), oracle.text, case.torch, case.id, oracle.clock)

    def keep(state: Program) -> None:
        made = script(state.text)
        update_case(folder, {f"{CHECKPOINTS}/{state.amount[0]}.py": made, REPRO: made})

    try:
        reduced = reduce_program(
            text,
            oracle,
            width=workers.count,
            budget_seconds=(1 - LEFT_FOR_VERIFYING) * budget_seconds,
            listener=follower,
            keep=keep,
        )
    except DoesNotFail as error:
        raise _not_as_it_did(case, next(iter(oracle.others), None), "does not fail here any more") from error
    follower.begins("writing the scripts")
    small, whole = ScriptToVerify("program"), ScriptToVerify("whole")
    files: dict[str, str | Path] = {
        small.name: script(reduced.text),
        whole.name: folder.file("original.py"),
    }
    before, after = lines_of(text), lines_of(reduced.text)
    seconds = round(time.monotonic() - started, 2)
    small_case = Minified(queries=reduced.queries, seconds=seconds, program_lines=after)
    number = oracle.numbers.get(reduced.state.text) if isinstance(oracle, DifferenceOracle) else None
    update_case(folder, files, minified=small_case, extra={"wrong_from_call": number} if number else {})
    follower.said(
        f"{before} → {after} lines after {reduced.queries} trials, {reduced.seconds:.0f} s"
        + ("" if reduced.complete else "; the time is used up, so it may not be minimal")
    )
    follower.written(Verification((small, whole), VERIFY_TIMES, VERIFY_TIMES, in_eager=oracle.eager_passes))
    return MinifyResult(reduced, round(oracle.trial_seconds, 2))


def _not_as_it_did(case: Case, seen: str | None, nothing: str) -> CannotMinify:
    how = f"fails differently here ({seen})" if seen else nothing
    return CannotMinify(f"case {case.id} {how}; run its original.py to compare")


def _expected(case: Case) -> Signature:
    """How its program fails: that is not what the compiler saw from inside."""
    seen = case.extra.get("seen_by_program")
    return signature_from_json(seen) if seen else case.signature


def _oracle_of(case: Case, questions: Questions, text: str, budget: float) -> ProgramOracle:
    """What is asked of programs: whether they fail so, or whether they differ so from eager.

    A script that became a case was run for that. A recorded call was seen failing from inside the compiler: it is run
    here, to see it as the program sees it.
    """
    expected = _expected(case)
    oracle = ProgramOracle(questions.workers, expected, questions.store)
    if case.kind == "accuracy":
        shown = last_line(parsed(text).text)
        oracle = DifferenceOracle(questions.workers, expected, questions.store, shows=shown)
    if "eager_passes" in case.extra:
        clock = case.extra.get("timeout")
        oracle.eager_passes = bool(case.extra["eager_passes"])
        oracle.clock, oracle.cpu = float(clock) if clock else None, case.extra.get("cpu")
        return oracle
    runs: list[Outcome] = []

    def run(change: Change, fill: int = 0) -> Outcome:
        runs.append(run_whole(questions, text, FIRST_RUN * budget, change, fill))
        return runs[-1]

    seen = run(NOTHING).signature
    if case.kind == "accuracy":
        if difference_to_eager(runs[0].seen.wrong, lambda fill: run(UNCOMPILED, fill).seen.wrong) is None:
            raise _not_as_it_did(case, None, "does not differ from eager here")
    elif seen is None or not SAME.same(case.signature, seen):
        raise _not_as_it_did(case, seen.summary if seen else None, "does not fail here")
    else:
        oracle.expected = seen
        oracle.eager_passes = run(UNCOMPILED).signature is None
    oracle.clock, oracle.cpu = max(LEAST_CLOCK, SLACK * max(each.seconds for each in runs)), cpu_for(runs)
    return oracle


# -- whatever a person calls a failure


@dataclass(frozen=True)
class CommandOracle:
    """Whether a command fails on programs, `width` at a time: `CommandOracle(order, folder, 2)([parsed(text)])`.

    How it ended for the whole program is `whole`: its status and the type of its last error. An undefined name fails,
    too, but as another error.
    """

    order: CheckOrder
    folder: Path
    width: int
    clock: float
    until: float
    whole: tuple[int | None, str] = (None, "")

    def __call__(self, states: Sequence[Program]) -> list[bool | None]:
        with ThreadPoolExecutor(self.width) as pool:
            return list(pool.map(self._answer, states))

    def _answer(self, state: Program) -> bool | None:
        left = max(0.0, self.until - time.monotonic())
        ended = self.run(state.text, min(left, self.clock))
        # What is cut short by the end of the search says nothing.
        return None if ended[0] is None and left < self.clock else self.fails(ended)

    def run(self, text: str, seconds: float) -> tuple[int | None, str]:
        """How the command ended on a program, None where it was not done in time, and what it printed."""
        with tempfile.TemporaryDirectory(dir=self.folder) as made:
            program, said = Path(made, Path(self.order.script).name), Path(made, "output")
            program.write_text(text, encoding="utf-8")
            words, place = self.order.command, self.order.cwd
            words = words if any("{}" in word for word in words) else (*words, "{}")
            command = [word.replace("{}", str(program)) for word in words]
            with Child(
                command, cwd=place, environment=self.order.environment, stdout=said, stderr=said
            ) as child:
                status = child.wait() if child.ended_within(seconds) else None
            return status, said.read_text(encoding="utf-8", errors="replace")

    def fails(self, ended: tuple[int | None, str]) -> bool:
        """Whether that is the failure."""
        status, said = ended
        if self.order.fails_with is not None:
            return re.search(self.order.fails_with, said) is not None
        return (status, last_word_of(said)) == self.whole


def minify_checked(order: CheckOrder, folder: Path, width: int, follower: Listener) -> ReducedProgram:
    """Makes a program small for as long as a command fails on it, and keeps the smallest so far at `order.out`."""
    script, out = Path(order.script), Path(order.out)
    try:
        text = standing_alone(script.read_text(encoding="utf-8"), script.absolute())
    except (OSError, SyntaxError, ValueError) as error:
        raise CannotMinify(f"{script} cannot be read as a Python program: {error}") from error
    started = time.monotonic()
    # Twice what is left for verifying: the host may have taken a while to start, and the last run is one of a person's.
    search = (1 - 2 * LEFT_FOR_VERIFYING) * order.budget
    clock = order.timeout or FIRST_RUN * order.budget
    oracle = CommandOracle(order, folder, width, clock, started + search)
    try:
        status, said = oracle.run(text, clock)
    except OSError as error:
        raise CannotMinify(f"the command cannot be started: {error}") from error
    took = time.monotonic() - started
    if status is None and order.timeout is None:
        raise CannotMinify(
            f"the command was not done after {took:.0f} s; where that is the failure, say --timeout"
        )
    oracle = replace(oracle, whole=(status, last_word_of(said)))
    if order.timeout is None:
        oracle = replace(oracle, clock=min(clock, max(LEAST_CLOCK, SLACK * took)))
    if order.fails_with is None and status == 0:
        raise CannotMinify(f"the command ends with status 0 for {script}: it does not fail")
    if order.fails_with is not None and not oracle.fails((status, said)):
        raise CannotMinify(f"what the command prints for {script} does not match {order.fails_with!r}")

    def keep(state: Program) -> None:
        out.write_text(state.text + "\n", encoding="utf-8")

    try:
        reduced = reduce_program(
            text,
            oracle,
            width=width,
            budget_seconds=search - took,
            listener=follower,
            keep=keep,
        )
    except DoesNotFail as error:
        raise CannotMinify("the program, printed anew from its syntax tree, does not fail") from error
    # In the words of the given text, where it fails in those.
    final = (
        reduced.text
        if oracle.fails(oracle.run(reduced.text, min(oracle.clock, order.budget - search)))
        else reduced.state.text + "\n"
    )
    out.write_text(final, encoding="utf-8")
    return reduced
