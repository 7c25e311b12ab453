"""What follows the capture of a case: its script is tried, it is blamed on someone, made small and worked around.

Each step stands alone: one that fails, dies or runs out of time leaves its reason in the case, and the others run.
Nothing here loads torch: scripts run in fresh processes, everything that searches in the search host.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.folder import CaseFolder, open_case, update_case, working_on
from torchsleuth.core.cases.model import Minified, Triage, Workaround, best_workaround
from torchsleuth.core.cases.spool import WatchedProcess
from torchsleuth.core.changes import Change
from torchsleuth.core.processes.prepared import PreparedInterpreter
from torchsleuth.front.program.acquittal import acquitted
from torchsleuth.front.program.call_component import blame_call
from torchsleuth.front.program.oracle import WatchedRuns
from torchsleuth.front.program.own_workarounds import gives_up, try_on_program
from torchsleuth.front.supervise.host import HostLost, SearchHost, StepRefused
from torchsleuth.front.supervise.original import (
    ORIGINAL,
    ask_the_program,
    tell_program_apart,
    verify_call,
    verify_original,
)
from torchsleuth.front.supervise.scripts import ScriptRunner
from torchsleuth.front.supervise.verification import (
    CHECKPOINTS,
    REPRO,
    ScriptToVerify,
    VerifiedRepro,
    in_words,
    script_from_json,
    verified_repro,
)

# In a case, where all steps that try something keep kernels and answers, so that each finds those of the others.
WORK = "minify"
# Most of a budget is for making the case small; what is not used goes to the next step.
TRIAGE_SECONDS, TRIAGE_SHARE = 120.0, 0.4
ANALYZE_SECONDS, ANALYZE_SHARE = 120.0, 0.25
# Calls from which on it is worth to know where a wrong result begins before the graph is made small.
ANALYZE_FIRST = 50
WORKAROUND_SECONDS = 120.0
# Of the time for all steps. A way around it is worth more to a person than the last call less.
KEPT_FOR_WORKAROUND = 0.2
KEPT_FOR_TRIAGE = 0.15
VERIFY_TIMES = 3
# Of what is left once a call was recorded, for runs of the program with a workaround.
SHARE_FOR_THE_PROGRAM = 0.3

Say = Callable[[str], None]
Hear = Callable[[dict[str, Any]], None]


def _nothing(_: Any) -> None:
    pass


@dataclasses.dataclass(frozen=True)
class Processes:
    """What works on one case: runs of its scripts, and the search host; no host where nothing is searched."""

    scripts: ScriptRunner = dataclasses.field(default_factory=ScriptRunner)
    host: SearchHost | None = None


@contextlib.contextmanager
def processes_for(
    folder: CaseFolder | None, workers: str | None, python: str | None = None
) -> Iterator[Processes]:
    """The processes for one case, which load torch while something else is waited for.

    Used as `with processes_for(folder, "2") as processes: triage_step(folder, processes, 60, print)`.
    """
    with contextlib.ExitStack() as stack:
        if folder is not None:
            stack.enter_context(working_on(folder))
        prepared = stack.enter_context(PreparedInterpreter())
        on_cpu = folder is None or folder.case.device == "cpu"
        runner = ScriptRunner(prepared if on_cpu else None, python or sys.executable)
        host = None
        if workers is not None:
            host = stack.enter_context(SearchHost(prepared, workers, folder.path / WORK if folder else None))
        yield Processes(runner, host)


# -- the steps of the search host


def triage_step(
    folder: CaseFolder,
    processes: Processes,
    budget: float,
    say: Say,
    heard: Hear = _nothing,
    *,
    before_minify: bool = False,
) -> CaseFolder:
    """Who is at fault, written into the case; what stopped it as well.

    Of a large graph that is about to be made small, only what can be told at once: `before_minify`.
    """
    assert processes.host is not None
    case = str(folder.path.absolute())
    try:
        processes.host.ask("triage", budget, said=say, heard=heard, case=case, before_minify=before_minify)
    except (StepRefused, HostLost) as why:
        say(f"case {folder.case.id}: {why}")
        return update_case(folder, triage=Triage(error=str(why)))
    return acquitted(reopened(folder), time.monotonic() + budget, say)


@dataclasses.dataclass(frozen=True)
class MinifyOutcome:
    """The case as it stands, the repro that was verified, and what the host tells beyond the case."""

    folder: CaseFolder
    repro: VerifiedRepro | None
    seconds: float
    told: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def verified(self) -> bool:
        return self.repro is not None and self.repro.holds


def minify_step(
    folder: CaseFolder, processes: Processes, budget: float, say: Say, heard: Hear = _nothing
) -> MinifyOutcome:
    """The smallest case that fails the same way, its script verified while the host asks what may vary.

    A host that is lost leaves the best script it had found, which is verified like any other. Where there is none, the
    reason is in the case, and raised.
    """
    assert processes.host is not None
    started = time.monotonic()
    search = _Search(folder, processes.scripts, started + budget, heard)
    error: SleuthError | None = None
    told: dict[str, Any] = {}
    with ThreadPoolExecutor(1) as beside, processes.scripts.stopped_with_us():
        search.beside = beside
        try:
            case = str(folder.path.absolute())
            told = processes.host.ask("minify", budget, said=say, heard=search.hear, case=case)
        except (StepRefused, HostLost) as why:
            error = why
        repro = search.repro()
    seconds = round(time.monotonic() - started, 2)
    folder = _with_minified(reopened(folder), search, repro, error, seconds)
    if error is not None and repro is None:
        raise error
    if error is not None:
        say(str(error))
    if repro is not None:
        verified = repro.to_case()
        if verified.error is not None:
            say(f"case {folder.case.id}: {REPRO}: {verified.error}")
        words = in_words(processes.scripts, len(repro.runs))
        folder = update_case(folder, verified=verified, extra={**folder.case.extra, "verified_in": words})
    return MinifyOutcome(folder, repro, seconds, told)


@dataclasses.dataclass
class _Search:
    """A search as the front follows it: how small, how many trials, and the verification once there are scripts."""

    folder: CaseFolder
    runner: ScriptRunner
    deadline: float
    heard: Hear
    beside: ThreadPoolExecutor | None = None
    calls: int | None = None
    trials: int = 0
    running: Future[VerifiedRepro] | None = None

    def hear(self, message: dict[str, Any]) -> None:
        self.trials += message.get("trials", 0)
        self.calls = message.get("smaller", self.calls)
        if "scripts" in message and self.running is None:
            scripts = [script_from_json(each) for each in message["scripts"]]
            self.running = self._verify(
                scripts, message["times"], message["at_once"], message["always"], message["in_eager"]
            )
        self.heard(message)

    def _verify(
        self, scripts: list[ScriptToVerify], times: int, at_once: int, always: bool, in_eager: bool
    ) -> Future[VerifiedRepro]:
        assert self.beside is not None
        return self.beside.submit(
            verified_repro,
            self.folder,
            scripts,
            self.runner,
            times=times,
            at_once=at_once,
            always=always,
            in_eager=in_eager,
            deadline=self.deadline,
        )

    def repro(self) -> VerifiedRepro | None:
        """The verified repro; of a search that did not come to its end, the best script it had found."""
        best = self.folder.file(f"{CHECKPOINTS}/{self.calls}.py")
        if self.running is None and self.calls is not None and best.is_file():
            self.running = self._verify(
                [ScriptToVerify(best.stem, needs_inputs=True)], VERIFY_TIMES, VERIFY_TIMES, True, False
            )
        return None if self.running is None else self.running.result()


def _with_minified(
    folder: CaseFolder,
    search: _Search,
    repro: VerifiedRepro | None,
    error: SleuthError | None,
    seconds: float,
) -> CaseFolder:
    """The section of the case: the host's, completed by what the script turned out to be."""
    known = folder.case.minified
    if error is not None:
        known = Minified(calls=search.calls, queries=search.trials or None, seconds=seconds, error=str(error))
    if known is None:
        return folder
    if repro is not None:
        lines = len(folder.text(REPRO).splitlines())
        kept = known.input_bytes if repro.script.input_bytes is None else repro.script.input_bytes
        known = dataclasses.replace(known, lines=lines, input_bytes=kept)
    return update_case(folder, minified=known)


def workaround_step(
    folder: CaseFolder, processes: Processes, budget: float, say: Say, heard: Hear = _nothing
) -> tuple[CaseFolder, list[Change]]:
    """What makes the graph pass, written into the case, and what was changed for each; may raise `StepRefused`."""
    assert processes.host is not None
    told = processes.host.ask("workaround", budget, said=say, heard=heard, case=str(folder.path.absolute()))
    return reopened(folder), [Change.from_json(each) for each in told["changes"]]


def analyze_step(
    folder: CaseFolder,
    processes: Processes,
    budget: float,
    say: Say,
    heard: Hear = _nothing,
    *,
    without: tuple[str, ...] = (),
    save: bool = False,
) -> CaseFolder:
    """Where a wrong result begins, written into the case; raises `StepRefused` where there is nothing to compare."""
    assert processes.host is not None
    case = str(folder.path.absolute())
    try:
        processes.host.ask("analyze", budget, said=say, heard=heard, case=case, without=without, save=save)
    except HostLost as why:
        say(f"case {folder.case.id}: {why}")
    return reopened(folder)


def sentences(say: Say) -> Hear:
    """Of what the host tells, what it says in words: `triage_step(folder, processes, 60, say, sentences(say))`."""
    return lambda message: say(message["said"]) if "said" in message else None


def reopened(folder: CaseFolder) -> CaseFolder:
    """The case as it is on disk now."""
    return open_case(folder.path.parent, str(folder.path))


# -- all of it, after a run


def investigate(
    folder: CaseFolder,
    process: WatchedProcess,
    deadline: float,
    workers: str | None,
    say: Say,
    heard: Hear,
    runs: WatchedRuns,
) -> Iterator[CaseFolder]:
    """Every step for one case, as long as there is time; yields the case after each.

    `runs` are those of the whole program, for all of its cases.
    """
    if folder.case.no_repro is not None:
        say(f"case {folder.case.id} has no repro: {folder.case.no_repro}")
        if workers is not None and folder.case.graph is not None:
            yield ask_the_program(folder, deadline, say, runs)
        elif workers is not None and not _is_the_programs(folder):
            yield _tell_workaround(try_on_program(folder, deadline, say), say)
        return
    with processes_for(folder, workers, process.facts.get("executable")) as processes:
        searches = processes.host is not None
        if folder.case.graph is None:
            yield from _investigate_call(folder, deadline, processes, say, heard)
            return
        folder = verify_original(folder, process, deadline, say, processes.scripts, look_again=searches)
        # Where there is a host, triage tells a bug of the program apart.
        if not searches and folder.case.phase == "run" and folder.case.kind != "accuracy":
            folder = tell_program_apart(folder, deadline, say, processes.scripts)
        yield folder
        if not searches:
            return
        if not _fails_here(folder):
            yield ask_the_program(folder, deadline, say, runs)
            return
        whole = deadline - time.monotonic()
        for step in (_blame, _analyze_first, _shrink, _blame_the_smallest, _work_around, _analyze):
            left = deadline - time.monotonic()
            if left >= 5:
                kept = _kept_for_later(step, folder, whole)
                folder = step(folder, processes, max(5.0, left - kept), say, heard)
                yield folder


def _investigate_call(
    folder: CaseFolder, deadline: float, processes: Processes, say: Say, heard: Hear
) -> Iterator[CaseFolder]:
    """The steps for a call that could not be captured: who is at fault is known, the program tries workarounds."""
    folder = verify_call(folder, deadline, say, processes.scripts)
    yield folder
    if processes.host is None or _is_the_programs(folder):
        return
    if _fails_here(folder):
        folder = blame_call(folder, ORIGINAL, processes.scripts.python, deadline, say)
        yield folder
    left = deadline - time.monotonic()
    if _fails_here(folder) and left >= 5:
        folder = _shrink(folder, processes, left * (1 - SHARE_FOR_THE_PROGRAM), say, heard)
        yield folder
    yield _tell_workaround(try_on_program(folder, deadline, say), say)


def _kept_for_later(step: Callable[..., CaseFolder], folder: CaseFolder, whole: float) -> float:
    """Of the time for all steps, what a step leaves to those after it."""
    if step not in (_shrink, _blame_the_smallest):
        return 0.0
    triage = KEPT_FOR_TRIAGE * whole if step is _shrink and not _is_settled(folder) else 0.0
    return triage + min(WORKAROUND_SECONDS, KEPT_FOR_WORKAROUND * whole)


def _fails_here(folder: CaseFolder) -> bool:
    verified = folder.case.verified
    return verified is not None and bool(verified.reproduced)


def _is_the_programs(folder: CaseFolder) -> bool:
    return folder.case.triage is not None and folder.case.triage.component == "program"


def _is_settled(folder: CaseFolder) -> bool:
    """Whether fewer calls than triage had could tell nothing more about who is at fault."""
    triage, small = folder.case.triage, folder.case.minified
    if triage is None or triage.component is None or triage.error is not None:
        return False
    if triage.component == "program" or (triage.pinned and triage.not_narrowed is None):
        return True
    return small is not None and (small.calls is None or small.calls >= len(triage.nodes))


def _blame(folder: CaseFolder, processes: Processes, left: float, say: Say, heard: Hear) -> CaseFolder:
    say(f"case {folder.case.id}: finding out who is at fault")
    seconds = min(TRIAGE_SECONDS, left * TRIAGE_SHARE)
    return _told(triage_step(folder, processes, seconds, say, before_minify=True), say)


def _blame_the_smallest(
    folder: CaseFolder, processes: Processes, left: float, say: Say, heard: Hear
) -> CaseFolder:
    """Triage of what `_shrink` has left, where triage of the whole graph has not come to an end."""
    if _is_settled(folder):
        return folder
    before = folder.case.triage
    say(f"case {folder.case.id}: finding out who is at fault in the smallest graph")
    folder = triage_step(folder, processes, min(TRIAGE_SECONDS, left), say)
    found = folder.case.triage
    if before is None or found is None:
        return folder
    if found.component is None and before.component is not None:
        return update_case(folder, triage=before)
    seconds = round((before.seconds or 0.0) + (found.seconds or 0.0), 2)
    return _told(update_case(folder, triage=dataclasses.replace(found, seconds=seconds)), say)


def _told(folder: CaseFolder, say: Say) -> CaseFolder:
    """The case; what triage has found is said."""
    found = folder.case.triage
    if found is not None and found.component is not None:
        part = f", {found.part}" if found.part else ""
        ops = f" ({', '.join(found.ops[:3])})" if found.ops else ""
        say(f"case {folder.case.id}: at fault: {found.component}{part}{ops}")
        if found.user_line:
            say(f"case {folder.case.id}: your line {found.user_line}: {found.code or ''}")
        elif found.not_narrowed:
            say(f"case {folder.case.id}: your line: {found.not_narrowed}")
    return folder


def _analyze_first(
    folder: CaseFolder, processes: Processes, left: float, say: Say, heard: Hear
) -> CaseFolder:
    """Where a wrong result of a large graph begins: what is made small next starts there."""
    large = folder.case.graph is not None and folder.case.graph.calls >= ANALYZE_FIRST
    return _analyze(folder, processes, left * ANALYZE_SHARE, say, heard) if large else folder


def _analyze(folder: CaseFolder, processes: Processes, left: float, say: Say, heard: Hear) -> CaseFolder:
    """Of a wrong result, where it begins, unless that was looked for."""
    known = folder.case.analysis is not None
    if folder.case.kind != "accuracy" or known or _is_the_programs(folder):
        return folder
    say(f"case {folder.case.id}: looking where the wrong result begins")
    try:
        folder = analyze_step(folder, processes, min(ANALYZE_SECONDS, left), say)
    except StepRefused as why:
        say(f"case {folder.case.id} was not analysed: {why}")
        return reopened(folder)
    if folder.case.analysis is not None:
        say(f"case {folder.case.id}: {folder.case.analysis.words}")
    return folder


def _shrink(folder: CaseFolder, processes: Processes, left: float, say: Say, heard: Hear) -> CaseFolder:
    if _is_the_programs(folder):
        return folder
    try:
        outcome = minify_step(folder, processes, left, say, heard)
    except (StepRefused, HostLost) as why:
        say(f"case {folder.case.id} was not made smaller: {why}")
        return reopened(folder)
    small, case = outcome.folder.case.minified, outcome.folder.case
    if small is not None and small.calls is not None and outcome.repro is not None:
        say(
            f"case {case.id}: {small.calls} {'call' if small.calls == 1 else 'calls'} left of "
            f"{case.graph.calls if case.graph else '?'}, "
            f"{small.queries} trials, {outcome.seconds:.0f} s; python {outcome.folder.file(REPRO)}"
        )
    elif small is not None and outcome.repro is not None:
        say(
            f"case {case.id}: {small.queries} trials, {outcome.seconds:.0f} s; python {outcome.folder.file(REPRO)}"
        )
    return outcome.folder


def _work_around(folder: CaseFolder, processes: Processes, left: float, say: Say, heard: Hear) -> CaseFolder:
    if _is_the_programs(folder):
        return folder
    deadline = time.monotonic() + left
    most = min(WORKAROUND_SECONDS, left)
    say(f"case {folder.case.id}: trying workarounds on the whole graph, {most:.0f} s at most")
    try:
        folder, _ = workaround_step(folder, processes, most, say)
    except (StepRefused, HostLost) as why:
        say(f"case {folder.case.id}: not every workaround was tried: {why}")
        folder = reopened(folder)
    if gives_up(folder.case.workarounds or ()):
        folder = try_on_program(folder, deadline, say)
    return _tell_workaround(folder, say)


def _tell_workaround(folder: CaseFolder, say: Say) -> CaseFolder:
    """The case; whether something that was tried works is said."""
    tried = folder.case.workarounds or ()
    best: Workaround | None = best_workaround(tried)
    if best is None:
        what = (
            f"none of {len(tried)} workarounds that were tried works" if tried else "no workaround was tried"
        )
        say(f"case {folder.case.id}: {what}")
        return folder
    say(f"case {folder.case.id}: tried and works: {best.name}")
    return folder
