"""Runs the cells of a sweep, several at a time, here or on a Ray cluster, and looks into one failure of each bucket;
what all of that found, as `sweep.json` and as a table in one HTML page: programs by settings, failures in buckets.

Programs first run without the compiler, once for each dtype: one that fails then says nothing about the compiler.

The page has no script and needs no network. Everything on it comes from programs and their failures, so all of it is
escaped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.folder import CaseFolder, open_case
from torchsleuth.core.changes import Change
from torchsleuth.core.processes.child import Child
from torchsleuth.front.supervise.program_runs import CannotRunProgram, ProgramRun, Watch, run_program
from torchsleuth.front.supervise.whole_program import run_and_investigate
from torchsleuth.front.sweep.cells import (
    PASSES,
    Bucket,
    CaseDocument,
    Cell,
    SweepLog,
    bucket_of,
    buckets_of,
    bug_of,
    cell_of,
    key_of,
    merged,
)
from torchsleuth.front.sweep.grid import SweptProgram, uncompiled

# A program may take this many times what one compile may take before it is a hang.
WHOLE_PROGRAM = 3
# Less is not worth starting Python and loading torch for.
LEAST_SECONDS = 5.0
_ON_RAY = ("-P", "-m", "torchsleuth.search.host.programs_on_ray")


class NoCluster(SleuthError):
    """Programs could not be run on the Ray cluster."""


@dataclass(frozen=True)
class Limits:
    """How long: `deadline` for all, `timeout` for one compile or compiled call, `each` for looking into one bucket."""

    deadline: float
    timeout: float
    each: float

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()


@dataclass
class Sweep:
    """A sweep under way: what to run, what is known, and whom to tell."""

    programs: Sequence[SweptProgram]
    settings: Sequence[Change]
    log: SweepLog
    limits: Limits
    cases_dir: Path
    about: Mapping[str, object]
    workers: str = "2"
    check_accuracy: bool = False
    say: Callable[[str], None] = lambda _: None
    # Writes the page and the issue text of a case that was looked into.
    finished: Callable[[CaseFolder], object] = lambda _: None

    def key(self, program: SweptProgram, setting: Change) -> str:
        return key_of(program, setting, self.about)

    def cell(self, program: SweptProgram, setting: Change) -> Cell | None:
        return self.log.cells.get(self.key(program, setting))

    def cells(self) -> list[Cell]:
        """Those of this sweep that are known; the log may hold others, of an earlier text of a program."""
        found = (self.cell(program, setting) for program, setting in self.jobs())
        return [cell for cell in found if cell is not None]

    def jobs(self) -> list[tuple[SweptProgram, Change]]:
        """What there is to compile."""
        return [(program, setting) for program in self.programs for setting in self.settings]

    def testable(self) -> list[tuple[SweptProgram, Change]]:
        """Of that, whatever passes without the compiler."""
        eager = (
            (program, setting, self.cell(program, uncompiled(setting))) for program, setting in self.jobs()
        )
        return [(p, s) for p, s, cell in eager if cell is not None and cell.answer == PASSES]

    def buckets(self) -> list[Bucket]:
        return merged(buckets_of(self.cells(), self.log.looked_into))

    def run(self) -> None:
        """Every cell that is not known yet, as long as there is time."""
        eager = dict.fromkeys((program, uncompiled(setting)) for program, setting in self.jobs())
        self._all(eager, "without the compiler")
        self._all(self.testable(), "compiled")

    def look_into_buckets(self) -> None:
        """One failure of each bucket is run once more, triaged, made small, verified, and worked around."""
        new = [bucket for bucket in self.buckets() if bucket.key not in self.log.looked_into]
        for number, bucket in enumerate(new, 1):
            if self.limits.left < LEAST_SECONDS:
                self.say(f"no time is left to look into {len(new) - number + 1} kinds of failures")
                return
            seconds = min(self.limits.each, self.limits.left / (len(new) - number + 1))
            self.say(f"{number} of {len(new)}: looking into {bucket.summary} (for {seconds:.0f} s at most)")
            self._look_into(bucket, seconds)

    def _all(self, jobs: Iterable[tuple[SweptProgram, Change]], how: str) -> None:
        missing = [job for job in jobs if self.cell(*job) is None]
        if missing:
            self.say(f"{len(missing)} runs {how}")
        on_ray = self.workers.startswith("ray")
        runs = self._on_ray(missing) if on_ray else self._here(missing, int(self.workers))
        with contextlib.closing(runs):  # ends what still runs, also where Ctrl-C arrives right here
            for done, (program, setting, run) in enumerate(runs, 1):
                cell = cell_of(self.key(program, setting), program, setting, run)
                self.log.add_cell(cell)
                what = cell.failures[0].summary if cell.failures else cell.why
                self.say(
                    f"{done} of {len(missing)}: {cell.program}, {cell.setting}: {cell.answer}"
                    f"{': ' + what if what else ''} ({cell.seconds:.0f} s)"
                )

    def _here(
        self, jobs: Sequence[tuple[SweptProgram, Change]], count: int
    ) -> Generator[tuple[SweptProgram, Change, ProgramRun], None, None]:
        stopped = threading.Event()

        def one(program: SweptProgram, setting: Change) -> ProgramRun | None:
            return (
                None
                if stopped.is_set() or self.limits.left < LEAST_SECONDS
                else self._run(program, setting, stopped)
            )

        with ThreadPoolExecutor(count) as pool:
            running = {pool.submit(one, *job): job for job in jobs}
            try:
                for future in as_completed(running):
                    run = future.result()
                    if run is not None and self.limits.left > 0:
                        yield (*running[future], run)
            finally:
                stopped.set()  # Ctrl-C: what runs is ended, what waits is not begun

    def _run(self, program: SweptProgram, setting: Change, stopped: threading.Event) -> ProgramRun:
        timeout = min(self.limits.left, self.limits.timeout * WHOLE_PROGRAM)
        try:
            return run_program(
                program.program,
                setting,
                watch=None if setting.uncompiled else self._watch(),
                timeout=timeout,
                cases_dir=self.cases_dir,
                stopped=stopped,
            )
        except CannotRunProgram as why:
            return ProgramRun(127, 0.0, tail=str(why))

    def _watch(self) -> Watch:
        return Watch(self.limits.timeout, self.check_accuracy)

    def _look_into(self, bucket: Bucket, seconds: float) -> None:
        program = next(each for each in self.programs if each.name == bucket.sample[0])
        setting = next(each for each in self.settings if each.name == bucket.sample[1])
        run = run_and_investigate(
            replace(program.program, change=setting),
            # Where the program alone noticed, its graphs are compared with eager: wrong numbers are the likely reason.
            watch=Watch(self.limits.timeout, self.check_accuracy or bucket.kind == "status"),
            timeout=self.limits.timeout * WHOLE_PROGRAM + seconds,
            budget=seconds,
            workers=self.workers,
            cases_dir=self.cases_dir,
            finished=self.finished,
            say=self.say,
        )
        alike = [
            case for case, s in zip(run.cases, run.signatures) if bucket_of(s, program.name) == bucket.key
        ]
        found = alike or (list(run.cases) if bucket.kind == "status" else [])
        why_not = None if found else "it was not seen again when the program was run once more"
        self.log.add_look(
            bucket.key, found[0] if found else None, why_not, self._bug(found[0]) if found else None
        )
        one = next(each for each in self.buckets() if bucket.key in each.keys)
        if one.same:
            others = [each.summary for each in (one, *one.same) if each.key != bucket.key]
            self.say(f"once made small, it is the same bug as {others[0]}")

    def _bug(self, case: CaseDocument) -> str | None:
        """What its repro shows, where that was seen to fail as the case does."""
        script = (
            repro_of(self.cases_dir, case) if (case.get("verified") or {}).get("same_signature") else None
        )
        return bug_of(case, script) if script else None

    def _on_ray(
        self, jobs: Sequence[tuple[SweptProgram, Change]]
    ) -> Generator[tuple[SweptProgram, Change, ProgramRun], None, None]:
        """The process that joins the cluster is told what to run, and tells a line for each that has ended."""
        if not jobs:
            return
        command = [sys.executable, *_ON_RAY, self.workers]
        with Child(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.input is not None and child.output is not None
            order = {
                "seconds": self.limits.left,
                "timeout": self.limits.timeout * WHOLE_PROGRAM,
                "watch": dataclasses.asdict(self._watch()),
                "folder": os.getcwd(),
                "jobs": [
                    {"command": program.program.command, "change": setting.to_json()}
                    for program, setting in jobs
                ],
            }
            child.input.write(json.dumps(order).encode() + b"\n")
            child.input.close()
            for line in child.output:
                message = json.loads(line)
                if "error" in message:
                    raise NoCluster(message["error"])
                run = ProgramRun(**{**message["run"], "cases": tuple(message["run"]["cases"])})
                yield (*jobs[message["job"]], run)
            if (code := child.wait()) != 0:
                raise NoCluster(f"the process that runs programs on Ray ended with status {code}")


def repro_of(cases_dir: Path, case: CaseDocument) -> str | None:
    """The repro of a case that was looked into; None where it has none, or the case is gone."""
    try:
        return open_case(cases_dir, str(case["id"])).text("repro.py")
    except (SleuthError, ValueError):
        return None


@dataclass(frozen=True)
class SweepResult:
    """All that a sweep knows. `known` are buckets and bugs of an earlier one, which do not count for `is_green`.

    `counts` are runs by how they ended; "program" are those left out because the program fails without the compiler.
    """

    about: Mapping[str, object]
    programs: tuple[str, ...]
    settings: tuple[str, ...]
    counts: Mapping[str, int]
    eager: tuple[Cell, ...]
    cells: tuple[Cell, ...]
    buckets: tuple[Bucket, ...]
    known: frozenset[str] = frozenset()

    def knows(self, bucket: Bucket) -> bool:
        """Whether an earlier sweep had this failure, or the bug that it turned out to be."""
        return not self.known.isdisjoint(bucket.keys)

    @property
    def is_green(self) -> bool:
        """Whether every program passed with every setting, but for buckets that are known."""
        known = {each.key for b in self.buckets if self.knows(b) for each in (b, *b.same)}
        forgiven = sum(
            bool(cell.failures) and all(f.bucket in known for f in cell.failures) for cell in self.cells
        )
        return self.counts["passes"] + forgiven == self.counts["wanted"]

    @property
    def others_in_words(self) -> list[str]:
        """What came of the runs that do not pass: `["3 fail in 2 different ways", "1 not done in time"]`."""
        ways = len(self.buckets)
        ways_to_end = {
            "fails": f"fail in {ways} different ways" if ways != 1 else "fail in one way",
            "late": "not done in time",
            "program": "left out because the program fails without the compiler, too",
            "not run": "not run",
        }
        return [f"{number} {what}" for key, what in ways_to_end.items() if (number := self.counts[key])]

    def to_json(self) -> dict[str, object]:
        """The document `sweep.json`."""
        return {
            "schema": 1,
            "about": dict(self.about),
            "programs": list(self.programs),
            "settings": list(self.settings),
            "counts": dict(self.counts),
            "eager": [dataclasses.asdict(cell) for cell in self.eager],
            "cells": [dataclasses.asdict(cell) for cell in self.cells],
            "buckets": [{**dataclasses.asdict(each), "known": self.knows(each)} for each in self.buckets],
        }


def result_of(sweep: Sweep, known: frozenset[str]) -> SweepResult:
    """What a sweep knows by now; `known` is of `known_buckets`."""
    cells = sweep.cells()
    eager = [sweep.cell(program, uncompiled(setting)) for program, setting in sweep.jobs()]
    wanted, own = len(eager), sum(cell is not None and cell.answer != PASSES for cell in eager)
    counts = {answer: sum(cell.answer == answer for cell in cells) for answer in ("passes", "fails", "late")}
    return SweepResult(
        about=sweep.about,
        programs=tuple(program.name for program in sweep.programs),
        settings=tuple(setting.name for setting in sweep.settings),
        counts={**counts, "program": own, "not run": wanted - len(cells) - own, "wanted": wanted},
        eager=tuple(sorted({cell for cell in eager if cell}, key=lambda cell: (cell.program, cell.setting))),
        cells=tuple(cells),
        buckets=tuple(sweep.buckets()),
        known=known,
    )


def known_buckets(path: Path) -> frozenset[str]:
    """The buckets of an earlier sweep and the bugs they turned out to be, from its sweep.json."""
    try:
        buckets = json.loads(path.read_text(encoding="utf-8"))["buckets"]
        every = [each for bucket in buckets for each in (bucket, *bucket.get("same", ()))]
        return frozenset(str(key) for each in every for key in (each["key"], each.get("bug")) if key)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as why:
        raise SleuthError(f"{path} cannot be read as the sweep.json of a sweep ({why})") from None
