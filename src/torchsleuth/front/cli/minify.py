"""`minify`: the smallest graph, inputs and settings, or the smallest program, that fail the same way, as a script."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from pathlib import Path

import click

from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.folder import CaseFolder
from torchsleuth.core.protocol.steps import REPRO, CheckOrder
from torchsleuth.front.cli.options import (
    budget_option,
    cases_option,
    json_option,
    path_option,
    seconds_option,
    workers_option,
)
from torchsleuth.front.cli.output import StatusLine, print_json, say, show
from torchsleuth.front.cli.wanted import (
    agree_to,
    known_case,
    yes_option,
)
from torchsleuth.front.supervise.case_at_work import CaseAtWork, processes_for
from torchsleuth.front.supervise.road import MinifyOutcome, minify
from torchsleuth.front.supervise.whole_program import adopt


class NotWritten(SleuthError):
    """The script could not be put where it was wanted."""


@click.command("minify", context_settings={"ignore_unknown_options": True})
@click.argument("case_or_script", default="last")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@budget_option(600)
@yes_option
@seconds_option("--timeout", "Seconds that a run of a program may take before it is a hang.")
@path_option("--out", about="Also write the small script here.")
@click.option(
    "--check", metavar="COMMAND", help="Make SCRIPT small for as long as COMMAND fails on it ({}: its file)."
)
@click.option(
    "--fails-with", metavar="REGEX", help="It fails where this is printed (with COMMAND, or python SCRIPT)."
)
@workers_option
@cases_option
@json_option
def minify_verb(
    case_or_script: str,
    arguments: tuple[str, ...],
    budget: float,
    yes: bool,
    timeout: float | None,
    out: Path | None,
    check: str | None,
    fails_with: str | None,
    workers: str,
    cases_dir: Path,
    as_json: bool,
) -> int:
    """Shrink a case, or any failing program, to the smallest script that fails the same way; verify it three times.

    Every smaller script found is kept at once: Ctrl-C leaves the best one as repro.py, and the same command goes on
    from there. A program, with its arguments, is made smaller as Python text. Also takes a written script, or one that
    PyTorch's own minifier wrote. Executes the case, and asks once about one that was not made here (--yes).

    \b
    torchsleuth minify last
    torchsleuth minify 3f9a --budget 60
    torchsleuth minify train.py --out repro.py
    torchsleuth minify minifier_launcher.py
    torchsleuth minify train.py --check "python compare.py {}"
    torchsleuth minify train.py --fails-with "loss is nan"
    """
    started = time.monotonic()
    if check is not None or fails_with is not None:
        order = _checked(Path(case_or_script), check, fails_with, out, arguments, timeout)
        return _minify_checked(order, budget, workers, as_json)
    folder = known_case(case_or_script, cases_dir)
    if folder is not None and arguments:
        raise click.UsageError(f"a case takes no arguments, and {case_or_script} is one")
    if folder is not None:
        agree_to(folder, yes)
    line = StatusLine(budget)
    with processes_for(folder, workers) as processes:
        try:
            if folder is None:
                script = Path(case_or_script)
                folder = adopt(
                    processes, script, cases_dir, budget, line.say, arguments=arguments, timeout=timeout
                )
            left = max(1.0, budget - (time.monotonic() - started))
            case = CaseAtWork(folder, processes, time.monotonic() + left, line.say, line.update)
            outcome = minify(case, left)
        except KeyboardInterrupt:
            line.end()
            kept = folder is not None and folder.file(REPRO).is_file()
            best = (
                "the best script so far is repro.py in the case"
                if kept
                else "no smaller script was found yet"
            )
            say(f"stopped; {best}, and the same command goes on")
            raise
        finally:
            line.end()
            if out is not None and folder is not None and folder.file(REPRO).is_file():
                _put_out(folder, out)
    if as_json:
        more = {
            "form": outcome.repro.script.form if outcome.repro else None,
            "seconds": {**outcome.done.seconds, "whole": outcome.seconds},
            "reducers": list(outcome.done.reducers),
        }
        print_json({**outcome.folder.document(), **more})
    else:
        show_result(outcome)
    return 0 if outcome.verified else 1


def _checked(
    script: Path,
    check: str | None,
    fails_with: str | None,
    out: Path | None,
    arguments: tuple[str, ...],
    timeout: float | None,
) -> CheckOrder:
    """What is asked for with a command of the person's; raises `UsageError` where that makes no sense."""
    if not script.is_file():
        raise click.UsageError(
            f"--check and --fails-with are about a script, and {script} is none that is here"
        )
    if check is not None and arguments:
        raise click.UsageError("arguments of the script belong into the command of --check")
    try:
        re.compile(fails_with or "")
        words = tuple(shlex.split(check)) if check is not None else (sys.executable, "{}", *arguments)
    except (re.error, ValueError) as error:
        raise click.UsageError(f"it cannot be read: {error}") from error
    if not words:
        raise click.UsageError("the command of --check is empty")
    small = (out or script.with_name(f"{script.stem}.small.py")).absolute()
    paths = str(script.absolute()), words, str(small), str(Path.cwd())
    return CheckOrder(*paths, dict(os.environ), fails_with, timeout)


def _minify_checked(order: CheckOrder, budget: float, workers: str, as_json: bool) -> int:
    """A program made small by a command, shown."""
    line = StatusLine(budget)
    try:
        with processes_for(None, workers) as processes:
            assert processes.host is not None
            done = processes.host.ask(order, budget, said=say, heard=line.update)
    except KeyboardInterrupt:
        line.end()
        say(f"stopped; the best program so far is {order.out}" if Path(order.out).is_file() else "stopped")
        raise
    finally:
        line.end()
    text = Path(order.out).read_text(encoding="utf-8")
    if as_json:
        print_json(
            {
                "program": order.out,
                "text": text,
                "reducers": list(done.reducers),
                "seconds": dict(done.seconds),
            }
        )
        return 0
    show(text.rstrip(), lines=True)
    show()
    count = len(text.splitlines())
    show(f"{count} {'line' if count == 1 else 'lines'}, {done.explanation[0]}: {order.out}")
    return 0


def _put_out(folder: CaseFolder, out: Path) -> None:
    try:
        out.write_text(folder.file(REPRO).read_text(encoding="utf-8"), encoding="utf-8")
    except OSError as error:
        raise NotWritten(
            f"{out} cannot be written ({error.strerror}); the script is {folder.file(REPRO)}"
        ) from error


def show_result(outcome: MinifyOutcome) -> None:
    """The result for a person: how small, what may vary, what each reducer did, and where the script is."""
    minified, repro = outcome.folder.case.minified, outcome.repro
    assert minified is not None and repro is not None
    size = f"lines of the script: {minified.lines}"
    if minified.calls is not None:
        size = f"calls left: {minified.calls}, inputs: {minified.inputs}"
    show(
        f"{size}, {minified.queries} trials, "
        f"{outcome.seconds:.1f} s; failed the same way in {repro.reproduced} of {len(repro.runs)} fresh processes"
    )
    for sentence in outcome.done.explanation:
        show(f"  {sentence}")
    for other in outcome.done.also:
        show(f"  another failure was met on the way and kept under also/: {other}")
    gone = "calls gone" if minified.calls is not None else "      gone"
    show()
    show(f"reducer                 trials  kept  {gone}  seconds")
    for row in outcome.done.reducers:
        if row["queries"]:
            show(
                f"{row['reducer']:<22}  {row['queries']:>6}  {row['successes']:>4}  "
                f"{row['calls_removed']:>10}  {row['seconds']:>7.1f}"
            )
    show()
    show(outcome.folder.text(REPRO).rstrip(), lines=True)
    show()
    show(f"run it: python {outcome.folder.file(REPRO)}")
