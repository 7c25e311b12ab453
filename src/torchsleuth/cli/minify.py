"""`minify`: the smallest graph, inputs and settings that fail the same way, as a script a person can read."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchsleuth.cases.errors import SleuthError
from torchsleuth.cases.folder import CaseFolder, open_case
from torchsleuth.cases.printable import printable
from torchsleuth.cli.options import WORK, budget_option, cases_option, json_option, print_json, workers_option

if TYPE_CHECKING:
    from torchsleuth.minify.case import MinifyResult
    from torchsleuth.minify.search.contract import State
    from torchsleuth.supervise.interpreter import Prestarted

# A short repro compiles in seconds; one that takes longer hangs, as it says it does.
HANG_SECONDS = 30


class NotACase(SleuthError):
    """A script that does not fail here."""


@click.command("minify")
@click.argument("case_or_script", default="last")
@budget_option(600)
@workers_option
@cases_option
@json_option
def minify_verb(case_or_script: str, budget: float, workers: str, cases_dir: Path, as_json: bool) -> int:
    """Shrink a case to the smallest script that still fails the same way, and verify it three times.

    Every smaller script found is kept at once: Ctrl-C leaves the best one as repro.py, and the same command goes on
    from there. Also takes a written script, or one that PyTorch's own minifier wrote.

    \b
    torchsleuth minify last
    torchsleuth minify 3f9a --budget 60
    torchsleuth minify minifier_launcher.py
    """
    started = time.monotonic()
    from torchsleuth.supervise.interpreter import Prestarted
    from torchsleuth.workers.cluster import open_workers

    folder = _known_case(case_or_script, cases_dir)
    place = {} if folder is None else {"folder": folder.path / WORK}
    # It loads torch for the trials and for the verification, while this process does for the search.
    with Prestarted() as early, open_workers(workers, home_for(folder, early), **place) as desk:
        if folder is None:
            from torchsleuth.minify.script_cases import case_of_script

            folder = case_of_script(Path(case_or_script), cases_dir, desk)  # type: ignore[arg-type]
        result = minify(folder, desk, budget - (time.monotonic() - started), early)
    if as_json:
        print_json({**result.folder.case.to_json(), **_for_programs(result, desk.start_up)})
    else:
        show_result(result)
    return 0 if result.verified else 1


def _for_programs(result: MinifyResult, start_up: float) -> dict[str, Any]:
    """What `--json` says beyond case.json; `start_up` overlaps with the search's own beginning."""
    return {
        "path": str(result.folder.path),
        "form": result.form,
        "seconds": {
            "start_up": round(start_up, 2),
            "search": result.reduction.seconds,
            "trials": result.trial_seconds,
            "whole": result.seconds,
        },
        "reducers": [dataclasses.asdict(row) for row in result.reduction.statistics],
    }


def minify(folder: CaseFolder, workers: Any, budget: float, early: Prestarted | None = None) -> MinifyResult:
    """Minifies one case, with a status line on stderr."""
    load_search()
    from torchsleuth.minify.case import minify_case

    line = StatusLine(max(1.0, budget))
    try:
        return minify_case(
            folder, budget_seconds=max(1.0, budget), workers=workers, listener=line, early=early
        )
    except KeyboardInterrupt:
        line.end()
        click.echo(
            "torchsleuth: stopped; the best script so far is repro.py in the case, and the same command goes on",
            err=True,
        )
        raise
    finally:
        line.end()


def load_search() -> None:
    """Loads what a search needs, torch first of all."""
    from torchsleuth.torch_internals.loading import without_collecting

    with without_collecting():
        from torchsleuth.minify.states import warm_up

        importlib.import_module("torchsleuth.minify.case")
        warm_up()


class StatusLine:
    """One line that answers: is it moving, how small, how many trials, how fast, how long still, may I stop now."""

    def __init__(self, budget: float) -> None:
        self.started_at = self.last = time.monotonic()
        self.budget = budget
        self.first = self.calls = self.trials = 0
        self.live = sys.stderr.isatty()
        self.shown = False

    def started(self, state: State) -> None:
        self.first = self.calls = _calls(state)
        self._show("")

    def asked(self, reducer: str, what: str, failed: Sequence[bool | None]) -> None:
        self.trials += len(failed)
        self._show(reducer)

    def smaller(self, reducer: str, state: State) -> None:
        self.last, self.calls = time.monotonic(), _calls(state)
        self._show(reducer, always=True)

    def said(self, text: str) -> None:
        self.end()
        click.echo(f"torchsleuth: {printable(text)}", err=True)

    def end(self) -> None:
        if self.shown and self.live:
            click.echo("", err=True)
        self.shown = False

    def _show(self, reducer: str, always: bool = False) -> None:
        now = time.monotonic()
        took = max(0.1, now - self.started_at)
        text = (
            f"torchsleuth: {self.first} → {self.calls} calls, {self.trials} trials in {took:.0f} s "
            f"({self.trials / took:.1f}/s), smaller {now - self.last:.0f} s ago, now {reducer or 'starting'}, "
            f"at most {max(0.0, self.budget - took):.0f} s more; Ctrl-C keeps the best so far"
        )
        if self.live:
            click.echo(f"\r\x1b[2K{text}", err=True, nl=False)
            self.shown = True
        elif always:
            click.echo(text, err=True)


def _calls(state: State) -> int:
    from torchsleuth.graphs.cut import calls_of

    return calls_of(state.graph)


def home_for(folder: CaseFolder | None, early: Prestarted) -> Prestarted | None:
    """What the server of the trials is forked from; a device's driver, once looked at, does not survive that."""
    return early if folder is not None and folder.case.device == "cpu" else None


def _known_case(wanted: str, cases_dir: Path) -> CaseFolder | None:
    """The case that is meant; None for a script that has yet to become one."""
    path = Path(wanted)
    if path.suffix != ".py" or not path.is_file():
        return open_case(cases_dir, wanted)
    if (path.parent / "case.json").is_file():
        return open_case(cases_dir, str(path.parent))
    text = path.read_text(encoding="utf-8", errors="replace")
    kind = re.search(r"(?m)^EXPECTED = \{'kind': '(\w+)'", text)
    return None if kind is None or re.search(r"(?m)^FACTS = ", text) else _recorded(path, kind[1], cases_dir)


def _recorded(script: Path, kind: str, cases_dir: Path) -> CaseFolder:
    """A short repro is a program like any other: run under watch, it leaves its case."""
    more = {"accuracy": ["--check-accuracy"], "hang": ["--timeout", str(HANG_SECONDS)]}.get(kind, [])
    command = [sys.executable, "-m", "torchsleuth", "run", "--json", "--record-only", *more]
    click.echo(f"torchsleuth: running {script.name} under watch, to have its graph", err=True)
    done = subprocess.run(
        [*command, "--cases", str(cases_dir), str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        cases = json.loads(done.stdout)["cases"]
    except (ValueError, KeyError):
        cases = []
    if not cases:
        raise NotACase(
            f"{script} was run under watch and nothing failed here, so there is nothing to make smaller; "
            f"try `torchsleuth verify {script}`"
        )
    return open_case(cases_dir, cases[-1]["path"])


def show_result(result: MinifyResult) -> None:
    """The result for a person: how small, what may vary, what each reducer did, and where the script is."""
    minified, verified = result.folder.case.minified, result.folder.case.verified
    assert minified is not None and verified is not None
    click.echo(
        f"calls left: {minified.calls}, inputs: {minified.inputs}, {minified.queries} trials, "
        f"{result.seconds:.1f} s; failed the same way in {verified.reproduced} of {verified.times} fresh processes"
    )
    for sentence in result.explanation.sentences:
        click.echo(f"  {printable(sentence)}")
    for other in result.also:
        click.echo(f"  another failure was met on the way and kept under also/: {printable(other)}")
    click.echo("\nreducer                 trials  kept  calls gone  seconds")
    for row in result.reduction.statistics:
        if row.queries:
            click.echo(
                f"{row.reducer:<22}  {row.queries:>6}  {row.successes:>4}  {row.calls_removed:>10}  {row.seconds:>7.1f}"
            )
    script = result.folder.file("repro.py")
    click.echo(f"\n{script.read_text(encoding='utf-8').rstrip()}\n\nrun it: python {script}")
