"""What follows the capture of a case: its script is tried, it is blamed on someone, made small and worked around."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from torchsleuth.cases.errors import SleuthError
from torchsleuth.cases.folder import CaseFolder, update_case
from torchsleuth.cases.model import Minified, Triage, Verified
from torchsleuth.cases.spool import WatchedProcess
from torchsleuth.repro.assemble import script_after_dynamo, user_line_of_node
from torchsleuth.supervise.interpreter import Prestarted
from torchsleuth.supervise.scripts import PHASE_SECONDS, ScriptRun, run_script
from torchsleuth.workers.queue import Desk

ORIGINAL = "original.py"
OUTER = "original-after-dynamo.py"
# Most of a budget is for making the case small; what is not used goes to the next step.
TRIAGE_SECONDS, TRIAGE_SHARE = 120.0, 0.4
WORKAROUND_SECONDS = 120.0


@dataclasses.dataclass(frozen=True)
class Helpers:
    """Processes that load torch while something else is waited for: workers for trials, an interpreter for scripts."""

    desk: Desk | None = None
    early: Prestarted | None = None


@contextlib.contextmanager
def helpers_for(folder: CaseFolder, workers: str | None) -> Iterator[Helpers]:
    """The helpers for one case; no workers where it is not made smaller, nothing at all where it has no script.

    >>> with helpers_for(folder, "2") as helpers: finish_case(folder, process, deadline, say, helpers)
    """
    with contextlib.ExitStack() as stack:
        if folder.case.no_repro is not None:
            yield Helpers()
            return
        early, desk = stack.enter_context(Prestarted()), None
        if workers is not None:
            from torchsleuth.cli.minify import home_for, load_search
            from torchsleuth.cli.options import WORK
            from torchsleuth.workers.cluster import open_workers

            # The search's own modules take two seconds to load, while scripts are waited for anyway.
            threading.Thread(target=load_search, daemon=True).start()
            desk = open_workers(workers, home_for(folder, early), folder=folder.path / WORK)
            stack.enter_context(desk)
        yield Helpers(desk, early)


def finish_case(
    folder: CaseFolder,
    process: WatchedProcess,
    deadline: float,
    say: Callable[[str], None],
    helpers: Helpers = Helpers(),  # noqa: B008 - it is frozen
) -> CaseFolder:
    """Verifies the script of a fresh case, cutting it after Dynamo where the graph after AOTAutograd does not fail."""
    case = folder.case
    if case.no_repro is not None:
        say(f"case {case.id} has no repro: {case.no_repro}")
        return folder
    python = process.facts.get("executable")
    early = helpers.early if python in (None, sys.executable) else None
    run = _try(folder, ORIGINAL, deadline, say, python, early)
    if not run.reproduced and case.after == "aot":
        outer = script_after_dynamo(folder, process)
        if outer is not None:
            say("the graph after AOTAutograd does not fail by itself; trying the one after Dynamo")
            folder = update_case(folder, {OUTER: outer.script})
            outer_run = _try(folder, OUTER, deadline, say, python, early)
            folder.file(OUTER).unlink()
            if outer_run.reproduced:
                run, folder = outer_run, update_case(folder, outer.files, **outer.sections)
    verified = Verified(1, int(run.reproduced), run.reproduced)
    if run.answer == "cannot_tell":
        verified = dataclasses.replace(verified, error=run.summary)
    folder = update_case(folder, verified=verified)
    if not run.reproduced:
        say(f"case {case.id}: original.py answers: {run.answer.replace('_', ' ')} ({run.summary})")
    # Where there are workers, triage tells a bug of the program apart.
    if case.phase == "run" and case.kind != "accuracy" and helpers.desk is None:
        folder = _tell_program_apart(folder, deadline, say, python, early)
    return folder


def _try(
    folder: CaseFolder,
    name: str,
    deadline: float,
    say: Callable[[str], None],
    python: str | None,
    early: Prestarted | None,
) -> ScriptRun:
    say(f"case {folder.case.id}: running its repro in a fresh process")
    run = run_case_script(folder, folder.file(name), deadline=deadline, python=python, early=early)
    say(f"case {folder.case.id}: {run.answer.replace('_', ' ')} in {run.seconds:.1f} s")
    return run


def run_case_script(
    folder: CaseFolder,
    script: Path,
    *,
    arguments: tuple[str, ...] = (),
    deadline: float | None = None,
    python: str | None = None,
    timeout: float | None = None,
    early: Prestarted | None = None,
) -> ScriptRun:
    """One run of a script of the case; a hang gets the clock under which it was found."""
    case = folder.case
    # The clock of a hang is the one it was caught under, with room for a loaded machine.
    hang = max(20.0, float(case.extra.get("timeout") or 30.0) * 1.5)
    phase_seconds = timeout or (hang if case.kind == "hang" else PHASE_SECONDS)
    if early is not None and case.device == "cpu":  # a device's driver does not survive a fork
        return early.run(
            script, case.signature, arguments=arguments, phase_seconds=phase_seconds, deadline=deadline
        )
    return run_script(
        script,
        case.signature,
        arguments=arguments,
        python=python or sys.executable,
        phase_seconds=phase_seconds,
        deadline=deadline,
    )


def blame_case(
    folder: CaseFolder, deadline: float, say: Callable[[str], None], helpers: Helpers
) -> CaseFolder:
    """Finds who is at fault, where the failure was seen again, and says it with the user's line."""
    left = deadline - time.monotonic()
    if helpers.desk is None or not _can_be_tried(folder) or left < 5:
        return folder
    from torchsleuth.cli.triage import triage

    say(f"case {folder.case.id}: finding out who is at fault")
    folder = triage(folder, helpers.desk, min(TRIAGE_SECONDS, left * TRIAGE_SHARE), quiet=True)
    found = folder.case.triage
    if found is not None and found.component is not None:
        part = f", {found.part}" if found.part else ""
        ops = f" ({', '.join(found.ops[:3])})" if found.ops else ""
        say(f"case {folder.case.id}: at fault: {found.component}{part}{ops}")
        if found.user_line:
            say(f"case {folder.case.id}: your line {found.user_line}: {found.code or ''}")
    return folder


def work_around_case(
    folder: CaseFolder, deadline: float, say: Callable[[str], None], helpers: Helpers
) -> CaseFolder:
    """Tries what could make the user's graph pass, and says the cheapest way that works."""
    left = deadline - time.monotonic()
    if helpers.desk is None or not _is_the_compilers(folder) or left < 5:
        return folder
    from torchsleuth.cli.workaround import workarounds
    from torchsleuth.workaround.find import best_of

    most = min(WORKAROUND_SECONDS, left)
    say(f"case {folder.case.id}: trying workarounds on the whole graph, {most:.0f} s at most")
    try:
        folder = workarounds(folder, helpers.desk, most, quiet=True)
    except SleuthError as why:
        say(f"case {folder.case.id}: no workaround was looked for: {why}")
        return folder
    best = best_of(folder.case.workarounds or ())
    if best is None:
        say(f"case {folder.case.id}: nothing that was tried makes the graph pass")
        return folder
    say(f"case {folder.case.id}: tried and works: {best.name}; paste:")
    for line in best.how.splitlines():
        say(f"    {line}")
    return folder


def _can_be_tried(folder: CaseFolder) -> bool:
    verified = folder.case.verified
    return verified is not None and bool(verified.reproduced)


def _is_the_compilers(folder: CaseFolder) -> bool:
    """Whether the failure was seen again and is not the program's own."""
    triage = folder.case.triage
    return _can_be_tried(folder) and (triage is None or triage.component != "program")


def shrink_case(
    folder: CaseFolder, deadline: float, say: Callable[[str], None], helpers: Helpers
) -> CaseFolder:
    """Makes the case small where its failure was seen again and is the compiler's; what stops it is in the case."""
    case = folder.case
    left = deadline - time.monotonic()
    if helpers.desk is None or not _is_the_compilers(folder) or left < 5:
        return folder
    from torchsleuth.cli.minify import minify

    try:
        result = minify(folder, helpers.desk, left, helpers.early)
    except Exception as error:
        why = str(error) if isinstance(error, SleuthError) else f"{type(error).__name__}: {error}"
        say(f"case {case.id} was not made smaller: {why}")
        return update_case(folder, minified=Minified(error=why))
    small = result.folder.case.minified
    if small is not None:
        say(
            f"case {case.id}: {small.calls} {'call' if small.calls == 1 else 'calls'} left of "
            f"{case.graph.calls if case.graph else '?'}, "
            f"{small.queries} trials, {result.seconds:.0f} s; python {result.folder.file('repro.py')}"
        )
    return result.folder


def _tell_program_apart(
    folder: CaseFolder,
    deadline: float,
    say: Callable[[str], None],
    python: str | None,
    early: Prestarted | None,
) -> CaseFolder:
    """A graph that fails in eager as well is the program's own bug, not the compiler's."""
    started = time.monotonic()
    script = folder.file(ORIGINAL)
    run = run_case_script(
        folder, script, arguments=("--eager",), deadline=deadline, python=python, early=early
    )
    if run.answer != "different":
        return folder
    node, _, summary = run.summary.partition(" | ")
    line, op = user_line_of_node(folder, node)
    say(
        f"case {folder.case.id}: it fails without the compiler, too: {summary}"
        + (f" ({line})" if line else "")
    )
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
