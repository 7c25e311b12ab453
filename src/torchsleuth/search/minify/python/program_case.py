"""`minify` of a script: it is run once to know how it fails, becomes a case, and is made smaller as Python.

Every smaller program is on disk at once, as a script that says in its last line whether it fails the same way.
"""

from __future__ import annotations

import ast
import hashlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

from torchsleuth.core.cases.folder import CaseFolder, now, update_case, write_case
from torchsleuth.core.cases.model import Case, Minified, case_id
from torchsleuth.core.change_table import UNCOMPILED
from torchsleuth.core.changes import NOTHING, Change
from torchsleuth.core.criteria import SAME, difference_to_eager
from torchsleuth.core.protocol.trials import Outcome
from torchsleuth.front.supervise.verification import CHECKPOINTS, REPRO, ScriptToVerify
from torchsleuth.script_runtime.signature import Signature, fingerprint
from torchsleuth.search.minify.case_state import CannotMinify
from torchsleuth.search.minify.minify_case import LEFT_FOR_VERIFYING, VERIFY_TIMES, Follower
from torchsleuth.search.minify.oracle import Questions
from torchsleuth.search.minify.python.oracle import (
    LEAST_CLOCK,
    SLACK,
    DifferenceOracle,
    ProgramOracle,
    cpu_for,
    last_line,
    limited,
    trial_of,
)
from torchsleuth.search.minify.python.program import Program, parsed
from torchsleuth.search.minify.python.reduce import DoesNotFail, ReducedProgram, reduce_program
from torchsleuth.search.workers.trial_log import TrialLog, surroundings
from torchsleuth.torch_core.repro.program import PROGRAM, program_script

ORIGINAL = "original.py"
# Of the time for everything, what the first run may take before it counts as a hang.
FIRST_RUN = 0.25
_ANYTHING = Signature("runtime_error", "run")


def is_program(folder: CaseFolder) -> bool:
    """Whether a case is a whole program rather than a graph."""
    return folder.case.graph is None and folder.file(PROGRAM).is_file()


@dataclass(frozen=True)
class FirstRun:
    """How a script is tried to know how it fails: its arguments, and the seconds it may take.

    `timeout` is after what it counts as a hang; without one it may take its share of the `budget` for everything.
    """

    arguments: tuple[str, ...] = ()
    timeout: float | None = None
    budget: float = 600.0


PLAINLY = FirstRun()


def case_of_program(
    script: Path, cases_dir: Path, questions: Questions, how: FirstRun = PLAINLY
) -> CaseFolder:
    """The case that a failing script is; raises `CannotMinify` where it does not fail, or is no Python."""
    try:
        text = standing_alone(script.read_text(encoding="utf-8"), script.absolute(), how.arguments)
    except (SyntaxError, ValueError) as error:
        raise CannotMinify(f"{script} is not a Python program: {error}") from error
    clock = how.timeout or FIRST_RUN * how.budget
    first = _ran(questions, text, clock)
    seen = first.signature
    if seen is None:
        raise CannotMinify(f"{script} does not fail here, so there is nothing to make smaller")
    uncompiled = _ran(questions, text, clock, UNCOMPILED)
    passes = uncompiled.signature is None
    # A hang takes its clock in each trial that shows it, and nothing else should take much longer than the whole did.
    slowest = uncompiled.seconds if passes or seen.kind == "hang" else max(first.seconds, uncompiled.seconds)
    usual = min(clock, max(LEAST_CLOCK, SLACK * slowest))
    torch = version("torch")
    case = Case(
        id=case_id(fingerprint(seen), hashlib.sha256(text.encode()).hexdigest(), None, torch),
        created=now(),
        torch=torch,
        device="cpu",
        kind=seen.kind,
        phase=seen.phase,
        direction=None,
        backend="none",
        after=None,
        signature=seen,
        script=(str(script), *how.arguments),
        extra={
            "eager_passes": passes,
            "timeout": how.timeout or usual,
            "cpu": None if seen.kind == "hang" else cpu_for([first, uncompiled]),
        },
    )
    original = program_script(parsed(text).text, seen, first.text, torch, case.id)
    files = {PROGRAM: text, ORIGINAL: original, "traceback.txt": first.text}
    return write_case(cases_dir, case, files)


def _ran(questions: Questions, text: str, clock: float, change: Change = NOTHING, fill: int = 0) -> Outcome:
    trial = trial_of(text, _ANYTHING, questions.store, change, fill)
    outcome = questions.workers.run(trial, limits=limited(questions.workers.limits, clock), fresh=True)
    if outcome.error is not None:
        raise CannotMinify(f"the script cannot be tried here: {outcome.error}")
    return outcome


def standing_alone(text: str, script: Path, arguments: Sequence[str] = ()) -> str:
    """The program with what it gets from where it lies and how it is called written into it, where it needs that.

    >>> print(standing_alone("print(__file__)", Path("/home/me/train.py")))
    __file__ = '/home/me/train.py'
    print(__file__)
    """
    tree = ast.parse(text)
    imported = {name.partition(".")[0] for node in ast.walk(tree) for name in _imported(node)}
    beside = [name for name in imported if _lies_in(script.parent, name) and name != script.stem]
    lines = ["import sys"] if arguments or beside else []
    lines += [f"sys.argv[1:] = {list(arguments)!r}"] if arguments else []
    lines += [f"sys.path.insert(0, {str(script.parent)!r})"] if beside else []
    if any(isinstance(node, ast.Name) and node.id == "__file__" for node in ast.walk(tree)):
        lines.append(f"__file__ = {str(script)!r}")
    if not lines:
        return text
    first = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
    place = max((n.end_lineno or 0 for n in first), default=0)
    given = text.splitlines()
    return "\n".join([*given[:place], *lines, *given[place:]])


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []


def _lies_in(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()


@dataclass(frozen=True)
class ProgramResult:
    """What came of it, and how long the trials took."""

    reduced: ReducedProgram
    trial_seconds: float


def minify_program(
    folder: CaseFolder, questions: Questions, follower: Follower, *, budget_seconds: float = 600.0
) -> ProgramResult:
    """Makes the program of a case as small as still fails the same way; `follower` has its script verified."""
    started = time.monotonic()
    workers, case = questions.workers, folder.case
    if workers.log.path is None:  # the workers were there before the case was
        workers.log = TrialLog(folder.file("minify/trials.jsonl"), surroundings(os.environ))
    text = folder.file(PROGRAM).read_text(encoding="utf-8")
    # A recorded call was seen failing from inside the compiler; here it is seen as the program sees it.
    recorded = "eager_passes" not in case.extra
    seen = _as_seen_here(folder, questions, text, budget_seconds) if recorded else None
    clock = case.extra.get("timeout") if seen is None else seen.clock
    oracle = _oracle_of(text, case)(
        workers,
        case.signature if seen is None else seen.signature,
        questions.store,
        eager_passes=bool(case.extra["eager_passes"]) if seen is None else seen.eager_passes,
        clock=float(clock) if clock else None,
        cpu=case.extra.get("cpu") if seen is None else seen.cpu,
    )
    if not oracle.eager_passes:
        follower.said(f"case {case.id}: the program fails without the compiler, too")

    def script(small: str) -> str:
        return program_script(small, case.signature, oracle.text, case.torch, case.id)

    def keep(state: Program) -> None:
        made = script(state.text)
        update_case(folder, {f"{CHECKPOINTS}/{lines_of(state)}.py": made, REPRO: made})

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
        other = next(iter(oracle.others), None)
        how = f"fails differently here ({other})" if other else "does not fail here any more"
        raise CannotMinify(f"case {case.id} {how}; run its original.py to compare") from error
    follower.begins("writing the scripts")
    small = ScriptToVerify("program")
    whole = ScriptToVerify("whole")
    files: dict[str, str | Path] = {
        small.name: script(reduced.text),
        whole.name: folder.file(ORIGINAL),
    }
    seconds = round(time.monotonic() - started, 2)
    small_program = Minified(queries=reduced.queries, seconds=seconds, program_lines=_lines(reduced.text))
    update_case(folder, files, minified=small_program)
    follower.said(
        f"{_lines(text)} → {_lines(reduced.text)} lines after {reduced.queries} trials, {reduced.seconds:.0f} s"
        + ("" if reduced.complete else "; the time is used up, so it may not be minimal")
    )
    follower.written(
        [small, whole], times=VERIFY_TIMES, at_once=VERIFY_TIMES, always=True, in_eager=oracle.eager_passes
    )
    return ProgramResult(reduced, round(oracle.trial_seconds, 2))


def _oracle_of(text: str, case: Case) -> Callable[..., ProgramOracle]:
    """What is asked of programs: whether they fail so, or whether they differ so from eager."""
    if case.kind != "accuracy":
        return ProgramOracle
    return partial(DifferenceOracle, shows=last_line(parsed(text).text))


@dataclass(frozen=True)
class _Seen:
    """How a program fails as a whole, whether it passes uncompiled, and what one run of a smaller one may take."""

    signature: Signature
    eager_passes: bool
    clock: float
    cpu: float


def _as_seen_here(folder: CaseFolder, questions: Questions, text: str, budget: float) -> _Seen:
    case = folder.case
    first = _ran(questions, text, FIRST_RUN * budget)
    if case.kind == "accuracy":
        return _differing_here(folder, questions, text, first, budget)
    if first.signature is None or not SAME.same(case.signature, first.signature):
        how = (
            f"fails differently here ({first.signature.summary})" if first.signature else "does not fail here"
        )
        raise CannotMinify(f"case {case.id} {how}; run its original.py to compare")
    uncompiled = _ran(questions, text, FIRST_RUN * budget, UNCOMPILED)
    clock = max(LEAST_CLOCK, SLACK * max(first.seconds, uncompiled.seconds))
    return _Seen(first.signature, uncompiled.signature is None, clock, cpu_for([first, uncompiled]))


def _differing_here(
    folder: CaseFolder, questions: Questions, text: str, first: Outcome, budget: float
) -> _Seen:
    case = folder.case
    runs: list[Outcome] = []

    def uncompiled(fill: int) -> str | None:
        runs.append(_ran(questions, text, FIRST_RUN * budget, UNCOMPILED, fill))
        return runs[-1].seen.wrong

    if difference_to_eager(first.seen.wrong, uncompiled) is None:
        raise CannotMinify(f"case {case.id} does not differ from eager here; run its original.py to compare")
    every = [first, *runs]
    clock = max(LEAST_CLOCK, SLACK * max(run.seconds for run in every))
    return _Seen(case.signature, True, clock, cpu_for(every))


def lines_of(program: Program) -> int:
    """How many lines of a program say something.

    >>> lines_of(parsed("def f():\\n    return 1"))
    2
    """
    return _lines(program.text)


def _lines(text: str) -> int:
    return sum(bool(line.strip()) for line in text.splitlines())
