"""The script of a fresh case: at which level of the compiler it fails by itself, or that only the program does.

The graph that failed comes first, then the one that Dynamo captured, with its backward; then both again from a second
run of the program, in which everything that they see was kept.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from torchsleuth.core.cases.door import text_inside
from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.folder import CaseFolder, update_case
from torchsleuth.core.cases.model import Triage, Verified
from torchsleuth.core.cases.record import read_record
from torchsleuth.core.cases.spool import WatchedProcess
from torchsleuth.core.criteria import Answer
from torchsleuth.front.program.oracle import WatchedRuns, ask_program
from torchsleuth.front.supervise.scripts import ScriptRun, ScriptRunner
from torchsleuth.front.supervise.second_look import second_look
from torchsleuth.front.supervise.verification import phase_clock
from torchsleuth.torch_core.repro.assemble import (
    CALL,
    LevelScript,
    call_files,
    scripts_of_levels,
    user_line_of_node,
)

ORIGINAL = "original.py"
# The script of another level while it is tried; it finds the kept inputs where it lies.
OTHER_LEVEL = "original-other-level.py"
NO_GRAPH_FAILS = "no graph of the program fails by itself"

Say = Callable[[str], None]


def verify_original(
    folder: CaseFolder,
    process: WatchedProcess,
    deadline: float,
    say: Say,
    runner: ScriptRunner,
    *,
    look_again: bool = True,
) -> CaseFolder:
    """Runs the script of a fresh case; where it does not fail by itself, those of other levels, and of a second run."""
    record = read_record(folder.file("record.json"))
    where = next((p for p in process.graph_folders() if p.name == f"g{record.number}"), None)
    levels = [] if where is None else scripts_of_levels(folder.case, where, process)
    run = _tried(folder, ORIGINAL, deadline, say, runner)
    folder, run = _relabelled(folder, where, process, run, say)
    if not run.reproduced or _fails_in_eager(folder, ORIGINAL, deadline, runner, len(levels) > 1):
        folder, run = _first_failing(folder, levels[1:], run, deadline, say, runner)
    why = None
    if not run.reproduced and look_again and folder.case.phase == "run":
        say(
            f"case {folder.case.id}: no script fails by itself; running the program once more, everything kept"
        )
        try:
            with second_look(folder, process, deadline) as (record_folder, again):
                levels = scripts_of_levels(folder.case, record_folder, again)
                folder, run = _first_failing(folder, levels, run, deadline, say, runner)
        except SleuthError as reason:
            why = str(reason)
            say(f"case {folder.case.id}: {why}")
    return update_case(folder, verified=_verified(run, why))


def verify_call(folder: CaseFolder, deadline: float, say: Say, runner: ScriptRunner) -> CaseFolder:
    """Runs the script of a recorded call; where it does not fail by itself, those of its other forms."""
    run = _tried(folder, ORIGINAL, deadline, say, runner)
    call = json.loads(text_inside(folder.path, CALL))
    text = text_inside(folder.path, "traceback.txt")
    for form in range(1, len(call["forms"])):
        if run.reproduced or time.monotonic() > deadline:
            break
        say(f"case {folder.case.id}: trying the call in another form")
        folder = update_case(folder, call_files(folder.case, call, text, form))
        run = _tried(folder, ORIGINAL, deadline, say, runner)
    folder = _acquitted(folder, deadline, say, runner)
    return update_case(folder, verified=_verified(run, None))


def _acquitted(folder: CaseFolder, deadline: float, say: Say, runner: ScriptRunner) -> CaseFolder:
    """Capture blames the program where an operator fails on real tensors as it does on capture's own.

    Those may have a shape or a device that the program's do not: then the call passes without the compiler.
    """
    case = folder.case
    if case.triage is None or case.triage.component != "program":
        return folder
    eager = runner.run(
        folder.file(ORIGINAL),
        case.signature,
        phase_seconds=phase_clock(case),
        deadline=deadline,
        compiles=False,
    )
    if eager.answer is not Answer.PASSES:
        return folder
    say(f"case {case.id}: the call passes without the compiler: what capture knew of its tensors was wrong")
    detail = "what capture knew of its tensors was wrong: without the compiler the call passes"
    blamed = dataclasses.replace(case.triage, component="dynamo", part="capture", detail=detail)
    return update_case(folder, triage=blamed)


def _verified(run: ScriptRun, why: str | None) -> Verified:
    if run.reproduced:
        return Verified(1, 1, True)
    said = run.summary if run.answer is Answer.CANNOT_TELL else f"{NO_GRAPH_FAILS} ({run.words})"
    return Verified(1, 0, False, error="; ".join(filter(None, [said, why])))


def _first_failing(
    folder: CaseFolder,
    levels: Sequence[tuple[str, LevelScript]],
    run: ScriptRun,
    deadline: float,
    say: Say,
    runner: ScriptRunner,
) -> tuple[CaseFolder, ScriptRun]:
    """The case with the script of the first level that fails the same way; as it was where none does."""
    for what, level in levels:
        say(f"case {folder.case.id}: trying {what}")
        kept = level.files.get("inputs")
        folder = update_case(folder, {OTHER_LEVEL: level.script, **({"inputs": kept} if kept else {})})
        other = _tried(folder, OTHER_LEVEL, deadline, say, runner)
        # One that fails without the compiler, too, is no better than the one that failed already.
        better = other.reproduced and not (
            run.reproduced and _fails_in_eager(folder, OTHER_LEVEL, deadline, runner, True)
        )
        folder.file(OTHER_LEVEL).unlink()
        if better:
            return update_case(folder, level.files, **level.sections), other
    return folder, run


def _fails_in_eager(
    folder: CaseFolder, name: str, deadline: float, runner: ScriptRunner, matters: bool
) -> bool:
    """Whether a graph whose run failed does so without the compiler: another level may show whose fault that is."""
    case = folder.case
    if not matters or case.kind != "runtime_error" or case.phase != "run":
        return False
    clock = phase_clock(case)
    run = runner.run(
        folder.file(name), case.signature, arguments=("--eager",), phase_seconds=clock, deadline=deadline
    )
    return run.answer is Answer.OTHER


def _tried(folder: CaseFolder, name: str, deadline: float, say: Say, runner: ScriptRunner) -> ScriptRun:
    say(f"case {folder.case.id}: running its repro in a fresh process")
    run = runner.run(
        folder.file(name), folder.case.signature, phase_seconds=phase_clock(folder.case), deadline=deadline
    )
    say(f"case {folder.case.id}: {run.words} in {run.seconds:.1f} s")
    return run


def _relabelled(
    folder: CaseFolder,
    where: Path | None,
    process: WatchedProcess,
    run: ScriptRun,
    say: Say,
) -> tuple[CaseFolder, ScriptRun]:
    """A hang as its script shows it: it may be in another phase than the program seemed to be in."""
    case = folder.case
    if case.kind != "hang" or run.reproduced:
        return folder, run
    if run.seen is not None and run.seen.kind == "hang" and where is not None:
        say(f"case {case.id}: it is a {run.seen.summary}; the case says so from here on")
        case = dataclasses.replace(case, signature=run.seen, phase=run.seen.phase)
        files = scripts_of_levels(case, where, process)[0][1].files
        folder = update_case(folder, files, signature=run.seen, phase=run.seen.phase)
        return folder, dataclasses.replace(run, answer=Answer.FAILS)
    return folder, run


def ask_the_program(folder: CaseFolder, deadline: float, say: Say, runs: WatchedRuns) -> CaseFolder:
    """Who is at fault and what helps, found out with the whole program, where no graph of it fails by itself."""
    say(f"case {folder.case.id}: {NO_GRAPH_FAILS}; asking the program who is at fault")
    try:
        found = ask_program(folder, deadline, lambda text: say(f"case {folder.case.id}: {text}"), runs)
    except SleuthError as reason:
        say(f"case {folder.case.id}: {reason}")
        return update_case(folder, triage=Triage(error=str(reason)))
    triage = found.triage
    part = f", {triage.part}" if triage.part else ""
    say(f"case {folder.case.id}: at fault: {triage.component or 'not known'}{part}: {triage.detail}")
    for each in found.workarounds[:1]:
        say(f"case {folder.case.id}: tried on the program and works: {each.name}; paste:")
        for line in each.how.splitlines():
            say(f"    {line}")
    return update_case(folder, triage=triage, workarounds=found.workarounds)


def tell_program_apart(folder: CaseFolder, deadline: float, say: Say, runner: ScriptRunner) -> CaseFolder:
    """A graph that fails in eager as well is the program's own bug, not the compiler's."""
    started = time.monotonic()
    run = runner.run(
        folder.file(ORIGINAL),
        folder.case.signature,
        arguments=("--eager",),
        phase_seconds=phase_clock(folder.case),
        deadline=deadline,
    )
    if run.answer is not Answer.OTHER:
        return folder
    node, _, summary = run.summary.partition(" | ")
    line, op = user_line_of_node(folder, node)
    where = f" ({line})" if line else ""
    say(f"case {folder.case.id}: it fails without the compiler, too: {summary}{where}")
    triage = Triage(
        component="program",
        part="operator",
        ops=(op,) if op else (),
        user_line=line,
        seconds=round(time.monotonic() - started, 2),
        detail=f"it fails without the compiler, too: {summary}",
        pinned=True,
    )
    return update_case(folder, triage=triage)
