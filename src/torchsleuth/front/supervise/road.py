"""The road of a failure, top to bottom: settle, locate and blame, minify, cure, analyze.

Each step stands alone: one that fails, dies or runs out of time leaves its reason in the case, and the next one runs
with what there is. Nothing here loads torch: scripts run in fresh processes, everything that searches in the search
host. Where no graph fails by itself the program is asked instead.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.folder import CaseFolder
from torchsleuth.core.cases.model import Minified, Triage, Verified, best_workaround
from torchsleuth.core.cases.spool import WatchedProcess
from torchsleuth.core.changes import NOTHING, Change
from torchsleuth.core.protocol.steps import (
    CHECKPOINTS,
    REPRO,
    AdoptOrder,
    AnalyzeOrder,
    Asked,
    Done,
    MinifyOrder,
    Says,
    ScriptToVerify,
    Seen,
    Smaller,
    TriageOrder,
    Verification,
    WorkaroundOrder,
)
from torchsleuth.front.supervise.case_at_work import ORIGINAL, CaseAtWork, Follow, Processes, processes_for
from torchsleuth.front.supervise.host import HostLost, StepRefused
from torchsleuth.front.supervise.program_blame import (
    KnownRuns,
    ask_program,
    blame_call,
    check_blame_of_program,
)
from torchsleuth.front.supervise.program_cures import gives_up, try_found_on_program, try_on_program
from torchsleuth.front.supervise.program_runs import CannotRunProgram, Say, nobody
from torchsleuth.front.supervise.settle import (
    NO_GRAPH_FAILS,
    VerifiedRepro,
    in_words,
    settle_call,
    settle_graph,
    verified_repro,
)

# Most of a budget is for making the case small; what is not used goes to the next step.
TRIAGE_SECONDS, TRIAGE_SHARE = 120.0, 0.4
ANALYZE_SECONDS, ANALYZE_SHARE = 120.0, 0.25
# Calls from which on it is worth to know where a wrong result begins before the graph is made small.
ANALYZE_FIRST = 50
WORKAROUND_SECONDS = 120.0
# For runs of the program with what helps its graph: one that takes longer, as a training does, leaves it unknown.
PROGRAM_SECONDS = 60.0
# Of the time for all steps. A way around it is worth more to a person than the last call less.
KEPT_FOR_WORKAROUND = 0.2
KEPT_FOR_TRIAGE = 0.15
# A step is not begun with less than this left.
LEAST_SECONDS = 5.0
# Of what is left once a call was recorded, for runs of the program with a workaround.
SHARE_FOR_THE_PROGRAM = 0.3


# -- one failure


def investigate(
    folder: CaseFolder,
    process: WatchedProcess,
    deadline: float,
    workers: str | None,
    note: Say,
    follow: Follow,
    known: KnownRuns,
    change: Change = NOTHING,
) -> Iterator[CaseFolder]:
    """Every step for one case, as long as there is time; yields the case after each.

    Without `workers` nothing is searched. `known` are runs of the whole program, for all of its cases; `change` is
    what it was run with.
    """
    nothing = Processes()
    work = CaseAtWork(folder, nothing, deadline, note, follow, change)
    if work.case.no_repro is not None:
        work.note(f"case {work.case.id} has no repro: {work.case.no_repro}")
        kept = work.case.extra.get("overwritten") is not None
        if kept and workers is not None:
            cure_program(work)
            yield work.folder
        if kept or workers is None or (work.case.graph is None and work.is_the_programs):
            return
    with processes_for(folder, workers, process.facts.get("executable")) as processes:
        work.processes = processes
        if work.case.graph is None:
            yield from _investigate_call(work)
        else:
            yield from _investigate_graph(work, process, known)


def _investigate_graph(work: CaseAtWork, process: WatchedProcess, known: KnownRuns) -> Iterator[CaseFolder]:
    if work.case.no_repro is None:
        settle_graph(work, process)
        yield work.folder
    if work.processes.host is None:
        return
    if not work.fails_here or work.is_a_program:  # that it is one an earlier run found out
        kept = SHARE_FOR_THE_PROGRAM * max(0.0, work.left)
        blame_by_program(dataclasses.replace(work, deadline=work.deadline - kept), known)
        work.reopen()
        yield work.folder
        take_program(work, work.left)
        yield work.folder
        return
    whole = work.left
    for step in (blame_at_once, locate, shrink, blame_the_smallest, cure, analyze):
        left = work.left
        if left >= LEAST_SECONDS:
            step(work, max(LEAST_SECONDS, left - _kept_for_later(step, work, whole)))
            yield work.folder


def _investigate_call(work: CaseAtWork) -> Iterator[CaseFolder]:
    """A call that could not be captured: who is at fault is mostly known, the program tries workarounds."""
    if work.case.no_repro is None:
        settle_call(work)
        yield work.folder
    if work.processes.host is None or work.is_the_programs:
        return
    if work.fails_here:
        python = work.processes.scripts.python
        if (found := blame_call(work.folder, ORIGINAL, python, work.deadline, work.say)) is not None:
            work.write(triage=found)
        yield work.folder
    share = 1 - SHARE_FOR_THE_PROGRAM
    if work.fails_here and work.left >= LEAST_SECONDS:
        shrink(work, work.left * share)
        yield work.folder
    if not work.fails_here or work.case.minified is None:
        take_program(work, work.left * share)
        yield work.folder
    cure_program(work)
    yield work.folder


def _kept_for_later(step: Callable[[CaseAtWork, float], None], work: CaseAtWork, whole: float) -> float:
    """Of the time for all steps, what a step leaves to those after it."""
    if step not in (shrink, blame_the_smallest):
        return 0.0
    triage = KEPT_FOR_TRIAGE * whole if step is shrink and not _is_settled(work) else 0.0
    return triage + min(WORKAROUND_SECONDS, KEPT_FOR_WORKAROUND * whole)


# -- locate and blame


def blame(
    work: CaseAtWork, seconds: float, follow: Follow | None = None, *, before_minify: bool = False
) -> None:
    """Who is at fault, written into the case; what stopped it as well.

    Of a large graph that is about to be made small, only what can be told at once: `before_minify`.
    """
    try:
        work.ask_host(TriageOrder(work.place, before_minify), seconds, follow)
    except (StepRefused, HostLost) as why:
        work.say(str(why))
        work.write(triage=Triage(error=str(why)))
        return
    check_blame_of_program(work, seconds)


def blame_at_once(work: CaseAtWork, left: float) -> None:
    """What is known without many compiles: for a person to read, and for the search to begin at."""
    work.say("finding out who is at fault")
    blame(work, min(TRIAGE_SECONDS, left * TRIAGE_SHARE), nobody, before_minify=True)
    _say_blame(work)


def locate(work: CaseAtWork, left: float) -> None:
    """Where a wrong result of a large graph begins: what is made small next starts there."""
    if work.case.graph is not None and work.case.graph.calls >= ANALYZE_FIRST:
        analyze(work, left * ANALYZE_SHARE)


def blame_the_smallest(work: CaseAtWork, left: float) -> None:
    """Triage of what `shrink` has left, where triage of the whole graph has not come to an end."""
    if _is_settled(work):
        return
    before = work.case.triage
    work.say("finding out who is at fault in the smallest graph")
    blame(work, min(TRIAGE_SECONDS, left), nobody)
    found = work.case.triage
    if before is None or found is None:
        return
    if found.component is None and before.component is not None:
        work.write(triage=before)
        return
    seconds = round((before.seconds or 0.0) + (found.seconds or 0.0), 2)
    work.write(triage=dataclasses.replace(found, seconds=seconds))
    _say_blame(work)


def _is_settled(work: CaseAtWork) -> bool:
    """Whether fewer calls than triage had could tell nothing more about who is at fault."""
    triage, small = work.case.triage, work.case.minified
    if triage is None or triage.component is None or triage.error is not None:
        return False
    if triage.component == "program" or (triage.pinned and triage.not_narrowed is None):
        return True
    return small is not None and (small.calls is None or small.calls >= len(triage.nodes))


def _say_blame(work: CaseAtWork) -> None:
    found = work.case.triage
    if found is None or found.component is None:
        return
    part = f", {found.part}" if found.part else ""
    ops = f" ({', '.join(found.ops[:3])})" if found.ops else ""
    work.say(f"at fault: {found.component}{part}{ops}")
    if found.user_line:
        work.say(f"your line {found.user_line}: {found.code or ''}")
    elif found.not_narrowed:
        work.say(f"your line: {found.not_narrowed}")


def blame_by_program(work: CaseAtWork, known: KnownRuns) -> None:
    """Who is at fault and what helps, found out with the whole program, where no graph of it fails by itself."""
    work.say(f"{NO_GRAPH_FAILS}; asking the program who is at fault")
    try:
        found = ask_program(work.case, work.program(), work.deadline, work.say, known)
    except SleuthError as reason:
        work.say(str(reason))
        work.write(triage=Triage(error=str(reason)))
        return
    triage = found.triage
    part = f", {triage.part}" if triage.part else ""
    work.say(f"at fault: {triage.component or 'not known'}{part}: {triage.detail}")
    for each in found.workarounds[:1]:
        work.say(f"tried on the program and works: {each.name}; paste:")
        for line in each.how.splitlines():
            work.note(f"    {line}")
    work.write(triage=triage, workarounds=found.workarounds)


def take_program(work: CaseAtWork, seconds: float) -> None:
    """The program itself becomes the script, as small as any other, where neither graph nor call fails by itself."""
    if work.is_the_programs or seconds < LEAST_SECONDS:
        return
    until = time.monotonic() + seconds
    try:
        program = work.program()
        if program.script is None:
            work.say("the program is no script that could be its repro")
            return
        work.say("trying the program itself as the script")
        where, arguments = str(work.folder.path.parent.absolute()), program.arguments
        clock = work.case.extra.get("timeout") if work.case.kind == "hang" else None
        order = AdoptOrder(str(program.script), where, arguments, clock, known=work.case.id)
        work.ask_host(order, seconds)
    except SleuthError as why:
        work.say(str(why))
        return
    work.reopen()
    run = work.ask(ORIGINAL)
    work.say(f"the program as a script: {run.words} in {run.seconds:.1f} s")
    work.write(
        verified=Verified(1, int(run.reproduced), run.reproduced, None if run.reproduced else run.summary)
    )
    if run.reproduced and (left := until - time.monotonic()) >= LEAST_SECONDS:
        shrink(work, left)


# -- minify


@dataclasses.dataclass(frozen=True)
class MinifyOutcome:
    """The case as it stands, the repro that was verified, and what the host tells beyond the case."""

    folder: CaseFolder
    repro: VerifiedRepro | None
    seconds: float
    done: Done = dataclasses.field(default_factory=Done)

    @property
    def verified(self) -> bool:
        return self.repro is not None and self.repro.holds


def minify(work: CaseAtWork, seconds: float) -> MinifyOutcome:
    """The smallest case that fails the same way, its script verified while the host asks what may vary.

    A host that is lost leaves the best script it had found, which is verified like any other. Where there is none, the
    reason is in the case, and raised.
    """
    started = time.monotonic()
    scripts = work.processes.scripts
    error: SleuthError | None = None
    done = Done()
    with ThreadPoolExecutor(1) as beside, scripts.stopped_with_us():
        search = _Search(work, started + seconds, beside)
        try:
            done = work.ask_host(MinifyOrder(work.place), seconds, search.follow)
        except (StepRefused, HostLost) as why:
            error = why
        repro = search.repro()
    took = round(time.monotonic() - started, 2)
    minified = work.case.minified
    if error is not None:
        minified = Minified(calls=search.calls, queries=search.trials or None, seconds=took, error=str(error))
    if minified is not None and repro is not None:  # completed by what the script turned out to be
        lines = len(work.folder.text(REPRO).splitlines())
        kept = minified.input_bytes if repro.script.input_bytes is None else repro.script.input_bytes
        minified = dataclasses.replace(minified, lines=lines, input_bytes=kept)
    if repro is not None:
        verified = repro.to_case()
        words = in_words(scripts, len(repro.runs))
        work.write(minified=minified, verified=verified, extra={"verified_in": words})
        if error is not None:
            work.note(str(error))
        if verified.error is not None:
            work.say(f"{REPRO}: {verified.error}")
    elif error is not None:
        work.write(minified=minified)
        raise error
    return MinifyOutcome(work.folder, repro, took, done)


@dataclasses.dataclass
class _Search:
    """A search as the front follows it: how small, how many trials, and the verification once there are scripts."""

    work: CaseAtWork
    deadline: float
    beside: ThreadPoolExecutor
    calls: int | None = None
    trials: int = 0
    running: Future[VerifiedRepro] | None = None

    def follow(self, message: Seen) -> None:
        if isinstance(message, Asked):
            self.trials += message.trials
        elif isinstance(message, Smaller):
            self.calls = message.size
        elif isinstance(message, Verification) and self.running is None:
            self._verify(message)
        self.work.follow(message)

    def _verify(self, wanted: Verification) -> None:
        at_work = dataclasses.replace(self.work, deadline=self.deadline)
        at_work.reopen()  # how many calls are left is known since the scripts were written
        self.running = self.beside.submit(verified_repro, at_work, wanted)

    def repro(self) -> VerifiedRepro | None:
        """The verified repro; of a search that did not come to its end, the best script it had found."""
        best = self.work.folder.file(f"{CHECKPOINTS}/{self.calls}.py")
        if self.running is None and self.calls is not None and best.is_file():
            self._verify(Verification((ScriptToVerify(best.stem, needs_inputs=True),), in_eager=False))
        return None if self.running is None else self.running.result()


def shrink(work: CaseAtWork, left: float) -> None:
    """`minify`, and in words what came of it."""
    if work.is_the_programs:
        return
    try:
        outcome = minify(work, left)
    except (StepRefused, HostLost) as why:
        work.note(f"case {work.case.id} was not made smaller: {why}")
        return
    small, graph = work.case.minified, work.case.graph
    if small is None or outcome.repro is None:
        return
    size = ""
    if small.calls is not None:
        calls = "call" if small.calls == 1 else "calls"
        size = f"reduced{f' from {graph.calls}' if graph else ''} to {small.calls} {calls}, "
    work.say(f"{size}{small.queries} trials, {outcome.seconds:.0f} s; python {work.folder.file(REPRO)}")


# -- cure


def find_workarounds(work: CaseAtWork, seconds: float, follow: Follow | None = None) -> list[Change]:
    """What makes the graph pass, written into the case, and how to run a whole program so; may raise `StepRefused`."""
    return list(work.ask_host(WorkaroundOrder(work.place), seconds, follow).changes)


def cure(work: CaseAtWork, left: float) -> None:
    """What helps, tried on the whole graph; where nothing does but another backend, on the program."""
    if work.is_the_programs:
        return
    most = min(WORKAROUND_SECONDS, left)
    work.say("trying workarounds on the whole graph")
    changes: list[Change] = []
    try:
        changes = find_workarounds(work, most, nobody)
    except (StepRefused, HostLost) as why:
        work.say(f"not every workaround was tried: {why}")
    if changes and not gives_up(work.case.workarounds or ()):
        _try_best_on_program(work, changes)
    if gives_up(work.case.workarounds or ()):
        try_on_program(work)
    _say_cure(work)


def _try_best_on_program(work: CaseAtWork, changes: list[Change]) -> None:
    """What helps the graph is shown once the program has passed with it, wherever the program can be run."""
    until = min(work.deadline, time.monotonic() + PROGRAM_SECONDS)
    try:
        if not work.program().from_stdin:
            try_found_on_program(dataclasses.replace(work, deadline=until), changes)
    except CannotRunProgram as why:
        work.note(str(why))
    work.reopen()


def cure_program(work: CaseAtWork) -> None:
    """What helps, where there is only the program to try it on."""
    try_on_program(work)
    _say_cure(work)


def _say_cure(work: CaseAtWork) -> None:
    tried = work.case.workarounds or ()
    best = best_workaround(tried)
    if best is not None:
        work.say(f"tried and works: {best.name}")
    else:
        none = f"none of {len(tried)} workarounds that were tried works"
        work.say(none if tried else "no workaround was tried")


# -- analyze


def find_divergence(
    work: CaseAtWork,
    seconds: float,
    follow: Follow | None = None,
    *,
    without: tuple[str, ...] = (),
    save: bool = False,
) -> None:
    """Where a wrong result begins, written into the case; raises `StepRefused` where there is nothing to compare.

    What to leave out, and whether to keep all values, is said as in `find_divergence(work, 60, without=("fusion",))`.
    """
    try:
        work.ask_host(AnalyzeOrder(work.place, without, save), seconds, follow)
    except HostLost as why:
        work.say(str(why))


def analyze(work: CaseAtWork, left: float) -> None:
    """Of a wrong result, where it begins, unless that was looked for."""
    if work.case.kind != "accuracy" or work.case.analysis is not None or work.is_the_programs:
        return
    work.say("looking where the wrong result begins")
    try:
        find_divergence(work, min(ANALYZE_SECONDS, left), nobody)
    except StepRefused as why:
        work.note(f"case {work.case.id} was not analysed: {why}")
        return
    if work.case.analysis is not None:
        work.say(work.case.analysis.words)


def sentences(note: Say) -> Follow:
    """Of what the host tells, what it says in words: `blame(work, 60, sentences(print))`."""
    return lambda message: note(message.text) if isinstance(message, Says) else None
