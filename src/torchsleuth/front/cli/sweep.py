"""`sweep`: many programs under many settings; failures in buckets, one of each made small, all in one table."""

from __future__ import annotations

import importlib.metadata
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from torchsleuth._version import __version__
from torchsleuth.core.cases.errors import error_of_oserror
from torchsleuth.core.protocol.files import write_whole
from torchsleuth.front.cli.doctor import ask_torch
from torchsleuth.front.cli.options import (
    Function,
    budget_option,
    cases_option,
    json_option,
    path_option,
    seconds_option,
    workers_option,
)
from torchsleuth.front.cli.output import AskedToEnd, print_json, say, show
from torchsleuth.front.report.html import write_report
from torchsleuth.front.report.pages import sweep_page
from torchsleuth.front.sweep.cells import PASSES, SweepLog
from torchsleuth.front.sweep.grid import AS_IS, DTYPES, NothingToSweep, programs_in, settings_of
from torchsleuth.front.sweep.running import (
    Limits,
    Sweep,
    SweepResult,
    known_buckets,
    repro_of,
    result_of,
)

# Of the time, what is kept for looking into failures; runs of programs have the rest.
SHARE_FOR_LOOKING = 0.3


def _words(_ctx: click.Context, _parameter: click.Parameter, given: str) -> list[str]:
    words = [word.strip() for word in given.split(",")]
    if not all(words):
        raise click.BadParameter(f"{given!r} has an empty name in it")
    return words


def _words_option(name: str, default: str, about: str) -> Callable[[Function], Function]:
    """Words with commas between them: `--backends inductor,aot_eager`."""
    return click.option(name, callback=_words, default=default, show_default=True, metavar="A,B", help=about)


@click.command("sweep")
@click.argument("where", metavar="DIR_OR_LIST", type=click.Path(path_type=Path))
@_words_option(
    "--backends", "inductor", f"Backends that take the place of the programs' own; {AS_IS}: their own."
)
@_words_option("--modes", AS_IS, "Modes of Inductor: default, reduce-overhead, max-autotune, …")
@_words_option(
    "--dtypes", AS_IS, "bfloat16 and float16: under autocast; float32 and float64: as the default dtype."
)
@click.option("--check-accuracy", is_flag=True, help="Compare every graph's first calls with eager, too.")
@seconds_option(
    "--timeout",
    "One compile or compiled call that takes longer is a hang; a program has three times as long.",
    default=300,
    least=1,
)
@budget_option(3600, "Seconds for everything.")
@seconds_option("--each", "Seconds for making one failure of a bucket small.", default=300, least=10)
@click.option("--no-minify", is_flag=True, help="Only run the programs; look into no failure.")
@path_option(
    "--out",
    about="Folder of sweep.html, sweep.json and results.jsonl, from which the same command goes on.",
    folder=True,
    default="torchsleuth-sweep",
)
@click.option("--fresh", is_flag=True, help="Forget what an earlier sweep left in --out.")
@path_option("--known", about="An earlier sweep.json: failures that it has do not count for the exit status.")
@workers_option
@cases_option
@json_option
def sweep_verb(
    where: Path,
    backends: list[str],
    modes: list[str],
    dtypes: list[str],
    check_accuracy: bool,
    timeout: float,
    budget: float,
    each: float,
    no_minify: bool,
    out: Path,
    fresh: bool,
    known: Path | None,
    workers: str,
    cases_dir: Path,
    as_json: bool,
) -> int:
    """Run many programs under many settings; put their failures into buckets, and make one of each small.

    DIR_OR_LIST is a folder of programs (its *.py files), or a file with a command in each line, as you would type it
    here. Each program runs without the compiler first: one that fails then says nothing about the compiler. Ctrl-C and
    the end of the budget keep what is known, and the same command goes on. Status 0 where everything
    passed, 1 elsewhere.

    \b
    torchsleuth sweep models/
    torchsleuth sweep nightly.txt --backends inductor,aot_eager --modes default,max-autotune --dtypes as-is,bfloat16
    torchsleuth sweep models/ --workers ray://head:10001 --known yesterday/sweep.json --json
    """
    started = time.monotonic()
    programs = programs_in(where)
    settings = settings_of(backends, modes, dtypes)
    forgiven = known_buckets(known) if known is not None else frozenset()
    _check_names(backends, modes, dtypes)
    try:
        out.mkdir(parents=True, exist_ok=True)
        log = SweepLog(out / "results.jsonl", fresh=fresh)
    except OSError as failure:
        raise error_of_oserror(out, failure) from failure
    share = 1.0 if no_minify else 1.0 - SHARE_FOR_LOOKING
    about = {
        "torch": importlib.metadata.version("torch"),
        "torchsleuth": __version__,
        "check_accuracy": check_accuracy,
    }
    limits = Limits(started + budget * share, timeout, each)
    sweep = Sweep(
        programs, settings, log, limits, cases_dir, about, workers, check_accuracy, say, write_report
    )
    say(f"{len(programs)} programs, {len(settings)} settings: {len(sweep.jobs())} runs")
    stopped: KeyboardInterrupt | AskedToEnd | None = None
    try:
        sweep.run()
        if not no_minify:
            sweep.limits = Limits(started + budget, timeout, each)
            sweep.look_into_buckets()
    except (KeyboardInterrupt, AskedToEnd) as asked:
        stopped = asked
        say(f"stopped; what is known stays in {out}, and the same command goes on")
    result = result_of(sweep, forgiven)
    page = _written(out, result, cases_dir)
    if as_json:
        print_json(result.to_json())
    else:
        _show(result, page)
    if isinstance(stopped, AskedToEnd):
        raise stopped
    return 130 if stopped else 0 if result.is_green else 1


def _check_names(backends: Sequence[str], modes: Sequence[str], dtypes: Sequence[str]) -> None:
    """Whether this torch knows what was named: else every program would fail at it."""
    _check("dtypes", dtypes, DTYPES)
    if {*backends, *modes} - {AS_IS, "inductor"}:  # which takes seconds to ask
        torch = ask_torch()
        _check("backends", [each for each in backends if not each.startswith("sleuth_")], torch.backends)
        _check("modes", modes, torch.modes)


def _check(option: str, wanted: Sequence[str], known: Sequence[str]) -> None:
    for each in wanted:
        if each != AS_IS and each not in known:
            raise NothingToSweep(f"--{option}: there is no {each!r}; there are {AS_IS}, {', '.join(known)}")


def _written(out: Path, result: SweepResult, cases_dir: Path) -> Path:
    """Writes document and page; where the page lies."""
    found = ((each.key, repro_of(cases_dir, each.case)) for each in result.buckets if each.case)
    page = out / "sweep.html"
    try:
        write_whole(out / "sweep.json", json.dumps(result.to_json(), indent=1))
        write_whole(page, sweep_page(result, {key: text for key, text in found if text}))
    except OSError as failure:
        raise error_of_oserror(out, failure) from failure
    return page


def _show(result: SweepResult, page: Path) -> None:
    """For a person: how many pass, the ways in which the others fail, and where the table is."""
    passes = f"{result.counts['passes']} of {result.counts['wanted']} runs pass"
    show(", ".join([passes, *result.others_in_words]))
    for cell in result.eager:
        if cell.answer != PASSES:
            how = cell.failures[0].summary if cell.failures else cell.why
            show(f"    left out   {cell.program}, {cell.setting}: {how}")
    for number, bucket in enumerate(result.buckets, 1):
        show()
        show(f"#{number}  {bucket.kind}: {bucket.summary}{' (known)' if result.knows(bucket) else ''}")
        places = [f"{program} ({setting})" for program, setting in bucket.cells]
        more = f" and {len(places) - 4} more" if len(places) > 4 else ""
        show(f"    seen with  {', '.join(places[:4])}{more}")
        case = bucket.case
        if case is None:
            show(f"    case       {bucket.why_not or 'not looked into'}")
            continue
        triage = case.get("triage") or {}
        if triage.get("component"):
            show(f"    at fault   {triage['component']}{', ' + triage['part'] if triage.get('part') else ''}")
        works = next((each for each in case.get("workarounds") or () if each["verified"]), None)
        if works is not None:
            show(f"    works      {works['name']}")
        show(f"    case       torchsleuth show {case['id']}")
        for other in bucket.same:
            if other.case is not None:
                seen = f"{other.summary} (torchsleuth show {other.case['id']})"
                show(f"    same bug   {seen}: its repro is the same")
    show()
    show(f"table: {page}")
