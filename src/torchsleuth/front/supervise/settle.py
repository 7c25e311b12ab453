"""What fails by itself, and whether that is the program's own fault: every retry on the road is in here.

A script of the graph that failed comes first, then one of the graph that Dynamo captured, with its backward; a hang is
named by the phase in which its script hangs. Where none fails by itself the program runs once more, everything kept
(`second_look.py`), and the scripts of both levels are tried again with that.

Of the scripts that a search wrote the most readable one that fails becomes repro.py: a small function under
`torch.compile` comes first, the exact script, which needs a runtime file beside it, last.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from torchsleuth.core.cases.door import text_inside
from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.model import Triage, Verified
from torchsleuth.core.cases.record import read_record
from torchsleuth.core.cases.spool import WatchedProcess
from torchsleuth.core.change_table import UNCOMPILED
from torchsleuth.core.criteria import Answer
from torchsleuth.core.protocol.codec import from_json
from torchsleuth.core.protocol.failures import RecordedCall
from torchsleuth.core.protocol.steps import CHECKPOINTS, REPRO, ScriptToVerify, Verification
from torchsleuth.front.supervise.case_at_work import ORIGINAL, OTHER_LEVEL, CaseAtWork, phase_clock
from torchsleuth.front.supervise.scripts import ScriptRun, ScriptRunner
from torchsleuth.front.supervise.second_look import second_look
from torchsleuth.torch_core.repro.assemble import (
    CALL,
    LevelScript,
    call_files,
    scripts_of_levels,
    user_line_of_node,
)

NO_GRAPH_FAILS = "no graph of the program fails by itself"
# What the verification gets in any case: a search that used up its time still ends with an answer.
LEAST_SECONDS = 20.0
# It gets what earlier runs of scripts took, each, up to so much.
MOST_SECONDS = 40.0
# Several at once share the cores.
ROOM_FOR_OTHERS = 1.5
# A script under NVIDIA's checker of memory, which makes kernels some ten times slower.
SANITIZER_SECONDS = 90.0


# -- a graph


def settle_graph(work: CaseAtWork, process: WatchedProcess) -> None:
    """Runs the script of a fresh case; where it does not fail by itself, those of other levels, and of a second run."""
    record = read_record(work.folder.file("record.json"))
    where = next((p for p in process.graph_folders() if p.name == f"g{record.number}"), None)
    levels = [] if where is None else scripts_of_levels(work.case, where, process)
    run = _relabelled(work, where, process, _tried(work, ORIGINAL))
    # Of a graph that fails without the compiler, too, another level may show whose fault that is.
    if not run.reproduced or (len(levels) > 1 and _fails_in_eager(work, ORIGINAL)):
        run = _first_failing(work, levels[1:], run)
    why = None
    searches = work.processes.host is not None
    if not run.reproduced and searches and work.case.phase == "run":
        work.say("no script fails by itself; running the program once more, everything kept")
        try:
            with second_look(work, process) as (record_folder, again):
                run = _first_failing(work, scripts_of_levels(work.case, record_folder, again), run)
        except SleuthError as reason:
            why = str(reason)
            work.say(why)
    work.write(verified=_verified(run, why))
    _name_kernel(work, run)
    # Where there is a host, it tells a bug of the program apart.
    if not searches and work.case.phase == "run" and work.case.kind != "accuracy":
        _tell_program_apart(work)


def _name_kernel(work: CaseAtWork, run: ScriptRun) -> None:
    """Which kernel it was, where a device says so; of an access, where NVIDIA's checker of memory is found."""
    kernel, tool = run.kernel, compute_sanitizer()
    accessed = "memory access" in work.case.signature.summary or "misaligned" in work.case.signature.summary
    if kernel is None and run.reproduced and accessed and tool is not None:
        work.say("running its repro under compute-sanitizer")
        until = min(work.deadline, time.monotonic() + SANITIZER_SECONDS)
        script = work.folder.file(ORIGINAL)
        checked = work.processes.scripts.run(
            script, work.case.signature, deadline=until, under=(tool, "--print-limit", "1")
        )
        kernel = checked.kernel
    if kernel is not None:
        work.say(kernel)
        work.write(extra={"kernel": kernel})


def compute_sanitizer() -> str | None:
    """NVIDIA's checker of a device's memory, where it is installed: `compute_sanitizer() or "not found"`."""
    return shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")


def _tried(work: CaseAtWork, name: str) -> ScriptRun:
    work.say("running its repro in a fresh process")
    run = work.ask(name)
    work.say(f"{run.words} in {run.seconds:.1f} s")
    return run


def _first_failing(work: CaseAtWork, levels: Sequence[tuple[str, LevelScript]], run: ScriptRun) -> ScriptRun:
    """Puts in place the script of the first level that fails the same way, and returns its run; else that of before."""
    for what, level in levels:
        work.say(f"trying {what}")
        kept = level.files.get("inputs")
        work.write({OTHER_LEVEL: level.script, **({"inputs": kept} if kept else {})})
        other = _tried(work, OTHER_LEVEL)
        # One that fails without the compiler, too, is no better than the one that failed already.
        better = other.reproduced and not (run.reproduced and _fails_in_eager(work, OTHER_LEVEL))
        work.folder.file(OTHER_LEVEL).unlink()
        if better:
            work.write(level.files, **level.sections)
            return other
    return run


def _relabelled(work: CaseAtWork, where: Path | None, process: WatchedProcess, run: ScriptRun) -> ScriptRun:
    """A hang as its script shows it: it may be in another phase than the program seemed to be in."""
    if work.case.kind != "hang" or run.reproduced or where is None:
        return run
    if run.seen is None or run.seen.kind != "hang":
        return run
    work.say(f"it is a {run.seen.summary}; the case says so from here on")
    named = replace(work.case, signature=run.seen, phase=run.seen.phase)
    files = scripts_of_levels(named, where, process)[0][1].files
    work.write(files, signature=run.seen, phase=run.seen.phase)
    return replace(run, answer=Answer.FAILS)


def _verified(run: ScriptRun, why: str | None) -> Verified:
    if run.reproduced:
        return Verified(1, 1, True)
    said = run.summary if run.answer is Answer.CANNOT_TELL else f"{NO_GRAPH_FAILS} ({run.words})"
    return Verified(1, 0, False, error="; ".join(filter(None, [said, why])))


# -- a call that could not be captured


def settle_call(work: CaseAtWork) -> None:
    """Runs the script of a recorded call; where it does not fail by itself, those of its other forms."""
    run = _tried(work, ORIGINAL)
    call = from_json(RecordedCall, json.loads(text_inside(work.folder.path, CALL)))
    text = text_inside(work.folder.path, "traceback.txt")
    for form in range(1, len(call.forms)):
        if run.reproduced or work.left < 0:
            break
        work.say("trying the call in another form")
        work.write(call_files(work.case, call, text, form))
        run = _tried(work, ORIGINAL)
    work.write(verified=_verified(run, None))
    blamed = work.case.triage
    # Capture blames the program where an operator fails on real tensors as it does on capture's own. Those may have a
    # shape or a device that the program's do not: then the call passes without the compiler.
    eager = work.ask(ORIGINAL, UNCOMPILED) if work.is_the_programs else None
    if blamed is not None and eager is not None and eager.answer is Answer.PASSES:
        work.say("the call passes without the compiler: what capture knew of its tensors was wrong")
        detail = "what capture knew of its tensors was wrong: without the compiler the call passes"
        work.write(triage=replace(blamed, component="dynamo", part="capture", detail=detail))


# -- is it the program's own fault?


def _fails_in_eager(work: CaseAtWork, name: str) -> bool:
    """Whether a graph whose run failed does so without the compiler, where only that shows whose fault it is."""
    if work.case.kind != "runtime_error" or work.case.phase != "run":
        return False
    return work.ask(name, UNCOMPILED).answer is Answer.OTHER


def _tell_program_apart(work: CaseAtWork) -> None:
    """A graph that fails in eager as well is the program's own bug, not the compiler's."""
    started = time.monotonic()
    run = work.ask(ORIGINAL, UNCOMPILED)
    if run.answer is not Answer.OTHER:
        return
    node, _, summary = run.summary.partition(" | ")
    line, op = user_line_of_node(work.folder, node)
    said = f"it fails without the compiler, too: {summary}"
    work.say(f"{said} ({line})" if line else said)
    triage = Triage(
        component="program",
        part="operator",
        ops=(op,) if op else (),
        user_line=line,
        seconds=round(time.monotonic() - started, 2),
        detail=said,
        pinned=True,
    )
    work.write(triage=triage)


# -- the scripts of a search


@dataclass(frozen=True)
class VerifiedRepro:
    """The script that became repro.py, how its runs ended, and whether it fails as it should.

    `eager` is a run of it without the compiler; `needs_eager` where that one must pass.
    """

    script: ScriptToVerify
    runs: tuple[ScriptRun, ...]
    fails: bool
    eager: ScriptRun
    needs_eager: bool

    @property
    def reproduced(self) -> int:
        return sum(run.reproduced for run in self.runs)

    @property
    def cannot_tell(self) -> bool:
        return all(run.answer is Answer.CANNOT_TELL for run in self.runs)

    @property
    def holds(self) -> bool:
        return self.fails and not (self.needs_eager and passes_in_eager(self.eager) is False)

    def to_case(self) -> Verified:
        """What the case says of it."""
        eager = passes_in_eager(self.eager)
        why = fails_in_eager(self.eager) if self.needs_eager and eager is False else None
        if self.runs and self.cannot_tell:
            why = self.runs[0].summary
        return Verified(len(self.runs), self.reproduced, self.holds, why, eager)


def passes_in_eager(run: ScriptRun) -> bool | None:
    """Whether a run without the compiler passed; None where that cannot be told.

    >>> passes_in_eager(ScriptRun(Answer.PASSES, "NOT REPRODUCED", 1.0))
    True
    """
    return None if run.answer is Answer.CANNOT_TELL else run.answer is Answer.PASSES


def fails_in_eager(run: ScriptRun) -> str:
    """The sentence about a script that fails without the compiler, too."""
    return f"it fails without the compiler, too ({run.summary}), so it does not show a bug of the compiler's"


def verified_repro(work: CaseAtWork, wanted: Verification) -> VerifiedRepro:
    """Runs the scripts in turn; the first that fails the same way, or the last, becomes repro.py.

    Where none passes without the compiler, as it has to, the first that fails is taken, and told so.
    """
    best: VerifiedRepro | None = None
    # With no time left only these are tried after the first: the small ones that do what the trials did.
    most_exact = [each.form for each in wanted.scripts if not each.needs_inputs][-1:]
    scripts = work.processes.scripts
    longest = max(scripts.longest_alone, min(scripts.longest, MOST_SECONDS))
    longest = phase_clock(work.case) if work.case.kind == "hang" else longest
    # By eager: plain inputs, for which random ones stand in; or a wrong result needs other numbers.
    refused = False
    for script in wanted.scripts:
        if best is not None and work.left < 0 and (script.form not in most_exact or best.cannot_tell):
            continue
        if script.random and not refused:
            continue
        if script.needs_inputs:
            _put(work, script)
        name = REPRO if script.needs_inputs else script.name
        least = time.monotonic() + max(LEAST_SECONDS, ROOM_FOR_OTHERS * longest)
        at_work = replace(work, deadline=max(work.deadline, least))
        with ThreadPoolExecutor(1) as beside, work.processes.scripts.stopped_with_us():
            uncompiled = beside.submit(at_work.ask, name, UNCOMPILED)
            # Then it is no better than the one that is there.
            worse = best is not None and best.fails and passes_in_eager(uncompiled.result()) is False
            runs = [] if worse else _runs(at_work, name, wanted)
        eager = uncompiled.result()
        by_chance = work.case.kind == "accuracy" and any(run.answer is Answer.PASSES for run in runs)
        refused = by_chance or passes_in_eager(eager) is False
        if worse:
            continue
        found = VerifiedRepro(script, tuple(runs), _holds(runs, wanted.always), eager, wanted.in_eager)
        best = found if best is None or not best.fails or found.holds else best
        if found.holds:
            break
    assert best is not None
    _put(work, best.script)
    return best


def _runs(work: CaseAtWork, name: str, wanted: Verification) -> list[ScriptRun]:
    """The runs that are asked for; one alone where the failure comes `always` and that one does not show it.

    Hangs are waited for together: each takes its whole clock.
    """
    first = work.ask_times(name, 1) if wanted.always and work.case.kind != "hang" else []
    if wanted.times == len(first) or not all(run.reproduced for run in first):
        return first
    return first + work.ask_times(name, wanted.times - len(first), wanted.at_once)


def _put(work: CaseAtWork, script: ScriptToVerify) -> None:
    files = {name: work.folder.file(f"{CHECKPOINTS}/{name}") for name in script.files}
    work.write({REPRO: work.folder.text(script.name), **files})


def _holds(runs: Sequence[ScriptRun], always: bool) -> bool:
    if always:
        return bool(runs) and all(run.reproduced for run in runs)
    return any(run.reproduced for run in runs) and not any(run.answer is Answer.OTHER for run in runs)


def in_words(runner: ScriptRunner, times: int) -> str:
    """What the processes were in which the script ran, for whoever reads the case."""
    cache = "an empty kernel cache each"
    if not runner.forks:
        return f"{times} interpreters started for it; {cache}"
    forks = "of an interpreter that had loaded torch and compiled nothing"
    if runner.hides_devices:
        return f"{times - 1} forks {forks}, without devices, and an interpreter started for it; {cache}"
    return f"{times} forks {forks}; {cache}"
