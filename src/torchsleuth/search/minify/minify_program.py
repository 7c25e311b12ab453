"""`minify` of a case that is a whole program: it is run to know how it fails here, and made smaller as Python text.

Every smaller program is on disk at once, as a script that says in its last line whether it fails the same way.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from torchsleuth.core.cases.folder import CaseFolder, update_case
from torchsleuth.core.cases.model import Case, Minified
from torchsleuth.core.change_table import UNCOMPILED
from torchsleuth.core.changes import NOTHING, Change
from torchsleuth.core.criteria import SAME, difference_to_eager
from torchsleuth.core.protocol.steps import CHECKPOINTS, REPRO, ScriptToVerify, Verification
from torchsleuth.core.protocol.trials import Outcome
from torchsleuth.script_runtime.signature import Signature, signature_from_json
from torchsleuth.search.minify.case_state import CannotMinify
from torchsleuth.search.minify.contract import Listener
from torchsleuth.search.minify.minify_case import LEFT_FOR_VERIFYING, VERIFY_TIMES, MinifyResult
from torchsleuth.search.minify.oracle import Questions
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
from torchsleuth.search.workers.queue import TrialLog, surroundings
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
    update_case(
        folder, files, minified=Minified(queries=reduced.queries, seconds=seconds, program_lines=after)
    )
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
