"""`bisect`: the torch release that brought or fixed the failure, found by running the repro in each that matters."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import sys
import threading
import time
from pathlib import Path

import click

from torchsleuth.core.cases.folder import CaseFolder, open_case, update_case
from torchsleuth.core.cases.releases import (
    BadRange,
    Bisection,
    TriedRelease,
    bisection_of,
    names_listed,
    range_of,
)
from torchsleuth.core.changes import NOTHING
from torchsleuth.core.criteria import ACROSS_RELEASES, Answer, answer_of_watched_run
from torchsleuth.front.bisect.environments import beside_torch, environments_folder, room_there
from torchsleuth.front.bisect.index import IndexProvider, installed_cuda, nightly_index
from torchsleuth.front.bisect.releases import (
    Plan,
    RepeatedScript,
    Search,
    bisect_releases,
    may_be_tried,
    plan_of,
    so_far,
    tried_before,
)
from torchsleuth.front.cli.options import budget_option, cases_option, json_option
from torchsleuth.front.cli.output import print_json, say, show
from torchsleuth.front.cli.wanted import NoRepro, NotAgreed, agree_to, script_of
from torchsleuth.front.supervise.case_at_work import phase_clock
from torchsleuth.front.supervise.program_runs import (
    CannotRunProgram,
    Program,
    program_of,
    run_program,
    watch_for,
)
from torchsleuth.front.supervise.scripts import PHASE_SECONDS, ScriptRun, ScriptRunner
from torchsleuth.script_runtime.signature import Signature

CPU_INDEX = "https://download.pytorch.org/whl/cpu"


@click.command("bisect")
@click.argument("case_or_repro", default="last")
@click.option(
    "--torch", "torch_range", metavar="A..B", help="Both ends included: 2.11..2.15, 2.13.0..nightly."
)
@click.option("--releases", metavar="LIST", help="These releases instead: 2.11.0,2.12.1.")
@click.option("--index-url", metavar="URL", help="Package index to take torch from.")
@click.option(
    "--yes", is_flag=True, help="Download, and execute a case that was not made here, without asking."
)
@click.option(
    "--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Releases tried at a time."
)
@click.option(
    "--times",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Runs that must all pass, for a failure that comes and goes.",
)
@click.option(
    "--program",
    is_flag=True,
    help="Run the whole program of the case in each release instead, with the packages that are here.",
)
@budget_option(7200, "Seconds to spend, downloads included.")
@cases_option
@json_option
def bisect_verb(
    case_or_repro: str,
    torch_range: str | None,
    releases: str | None,
    index_url: str | None,
    yes: bool,
    workers: int,
    times: int,
    program: bool,
    budget: float,
    cases_dir: Path,
    as_json: bool,
) -> int:
    """Find the torch release that brought or fixed a failure.

    Runs the repro in one environment per release, kept for next time. Says how much that may download, and asks.
    Dates mean nightlies. Status 0 with an answer, 1 where it never fails or no answer was found. Ctrl-C keeps
    what was tried, and the same command goes on.

    \b
    torchsleuth bisect last --torch 2.11..2.15
    torchsleuth bisect 3f9a --torch 2.11..2.15 --index-url https://download.pytorch.org/whl/cpu --yes
    torchsleuth bisect repro.py --torch 2026-10-01..2026-11-01
    """
    asked = _Asked(case_or_repro, cases_dir, index_url, workers, times, yes, time.monotonic() + budget)
    folder, script, expected = _subject(asked, program)
    if folder is not None:
        agree_to(folder, yes)
    on_cuda = folder is not None and folder.case.device.startswith("cuda")
    nightlies = nightly_index(installed_cuda() if on_cuda else None)
    provider = IndexProvider(index_url, nightlies=nightlies, say=say)
    versions = _versions(provider, torch_range, releases)
    say(f"{len(versions)} {_releases(len(versions))}: {', '.join(versions)}")
    result = _found(asked, folder, script, expected, provider, versions)
    if script is not None and folder is not None and result.error is None and result.version is None:
        # A graph by itself says nothing of what another release captures, and a repro may not fail by itself at all.
        try:
            _program_of(folder)
        except CannotRunProgram as why:
            result = dataclasses.replace(
                result, notes=(*result.notes, f"this is about {script.name} alone: {why}")
            )
        else:
            say(f"{script.name}: {sentence_of(result)}; its program may know more and is asked as well")
            result = _found(asked, folder, None, expected, provider, versions)
    if as_json:
        print_json(result.to_json())
    else:
        show_bisection(result)
    return 0 if result.answer in ("broken since", "fixed in", "always") else 1


@dataclasses.dataclass(frozen=True)
class _Asked:
    """What a person asked for, less the releases."""

    wanted: str
    cases_dir: Path
    index_url: str | None
    workers: int
    times: int
    yes: bool
    deadline: float


def _subject(asked: _Asked, program: bool) -> tuple[CaseFolder | None, Path | None, Signature]:
    """The case, its script - None where its program is to be run, or is all there is - and how it fails."""
    if not program:
        try:
            case, script, expected = script_of(asked.wanted, asked.cases_dir)
            return case, script.resolve(), expected
        except NoRepro as none:
            folder = open_case(asked.cases_dir, asked.wanted)
            try:
                _program_of(folder)
            except CannotRunProgram:
                raise none from None
            say(f"{none}; its program is asked instead")
            return folder, None, folder.case.signature
    folder = open_case(asked.cases_dir, asked.wanted)
    _program_of(folder)
    return folder, None, folder.case.signature


def _program_of(folder: CaseFolder) -> Program:
    program = program_of(folder)
    if not Path(program.command[0]).name.startswith("python"):
        raise CannotRunProgram(f"{program.command[0]} is no Python, so it cannot be run with another torch")
    return program


def _found(
    asked: _Asked,
    folder: CaseFolder | None,
    script: Path | None,
    expected: Signature,
    provider: IndexProvider,
    versions: list[str],
) -> Bisection:
    """What a search with the script, or with the program of the case, finds."""
    runner = _runner(folder, script, expected, asked.times)
    search = Search(versions, provider, runner, asked.deadline, asked.workers)
    key = _key(script, asked.index_url, asked.times)
    if folder is not None:
        search.tried = tried_before(bisection_of(folder.case), key, versions)
    plan = plan_of(may_be_tried(search), provider, asked.workers)
    _agree(plan, asked.yes, cheaper=_cheaper(folder, asked.index_url))
    return _searched(search, folder, key)


def _searched(search: Search, folder: CaseFolder | None, key: str) -> Bisection:
    """The search, with progress on stderr and every answer put into the case at once."""
    started = time.monotonic()
    search.say = say

    def keep(result: Bisection) -> None:
        if folder is not None:
            section = dataclasses.replace(result, of=key).to_json()
            update_case(folder, extra={"bisect": section})

    def keep_release(tried: TriedRelease) -> None:
        say(
            f"torch {tried.version} {tried.outcome}: {tried.why} ({tried.seconds:.0f} s); "
            f"{len(search.tried)} of {len(search.versions)} known after {time.monotonic() - started:.0f} s"
        )
        keep(so_far(search, "stopped before the answer was found"))

    search.on_tried = keep_release
    try:
        result = bisect_releases(search)
    except KeyboardInterrupt:
        say("stopped; environments and answers so far are kept, and the same command goes on")
        raise
    keep(result)
    return result


def _versions(provider: IndexProvider, torch_range: str | None, releases: str | None) -> list[str]:
    if (torch_range is None) == (releases is None):
        raise BadRange("Say which releases to try: either --torch 2.11..2.15 or --releases 2.11.0,2.12.1.")
    return names_listed(releases) if releases is not None else provider.versions(range_of(torch_range or ""))


def _runner(
    folder: CaseFolder | None, script: Path | None, expected: Signature, times: int
) -> RepeatedScript:
    clock = PHASE_SECONDS if folder is None else phase_clock(folder.case)
    stopped = threading.Event()

    def script_once(python: str, deadline: float) -> ScriptRun:
        assert script is not None
        runner = ScriptRunner(python=python, environment=beside_torch(), stopped=stopped)
        run = runner.run(script, expected, phase_seconds=clock, deadline=deadline)
        # The script knows the words of its own release.
        if run.answer is Answer.OTHER and run.seen is not None:
            run = dataclasses.replace(run, answer=ACROSS_RELEASES.answer(expected, run.seen))
        return run

    if folder is None or script is not None:
        return RepeatedScript(script_once, stopped, times)
    started, watch = _program_of(folder), watch_for(folder.case)

    def program_once(python: str, deadline: float) -> ScriptRun:
        there = dataclasses.replace(
            started, command=(python, *started.command[1:]), environment=beside_torch()
        )
        left = deadline - time.monotonic()
        run = run_program(there, NOTHING, watch=watch, timeout=left, stopped=stopped)
        answer = answer_of_watched_run(expected, run, ACROSS_RELEASES)
        missing = re.search(r"(?m)^(?:ModuleNotFoundError|ImportError): .*", run.tail)
        if missing and answer is Answer.OTHER and not run.signatures:
            return ScriptRun(Answer.CANNOT_TELL, f"the program does not start: {missing[0]}", run.seconds)
        seen = run.signatures[0] if run.signatures else None
        how = f"the program ended with status {run.status}" + (f" ({run.last_word})" if run.last_word else "")
        return ScriptRun(answer, seen.summary if seen else how, run.seconds, seen)

    return RepeatedScript(program_once, stopped, times)


def _key(script: Path | None, index_url: str | None, times: int) -> str:
    """What answers kept in the case must agree on to count again."""
    asked = b"the program" if script is None else script.read_bytes()
    about = (asked, (index_url or "").encode(), sys.version.encode(), str(times).encode())
    return hashlib.sha256(b"\0".join(about)).hexdigest()[:16]


def _cheaper(folder: CaseFolder | None, index_url: str | None) -> str:
    on_cpu = folder is not None and folder.case.device == "cpu"
    if index_url or not on_cpu or not sys.platform.startswith("linux"):
        return ""
    return f" This failure is seen on the CPU: --index-url {CPU_INDEX} takes 0.2 GB per release."


def _agree(plan: Plan, yes: bool, cheaper: str) -> None:
    """Says what may be downloaded, and goes on only where that is wanted."""
    if not plan.count:
        return
    about = "" if plan.exact else ", by estimate"
    free = room_there(environments_folder())
    say(
        f"this downloads up to {plan.most} {_releases(plan.most)} of torch, {plan.bytes / 1e9:.1f} GB{about} "
        f"(all {plan.count}, {plan.all_bytes / 1e9:.1f} GB, where many cannot be tested); environments take some "
        f"{plan.disk / 1e9:.1f} GB of disk, of which {free / 1e9:.0f} GB are free, and "
        f"{plan.seconds / 60:.0f} minutes, the runs apart.{cheaper}"
    )
    if yes:
        return
    if not sys.stdin.isatty():
        raise NotAgreed("Nothing was downloaded, as nobody can be asked here; say --yes to go on.")
    if not click.confirm("torchsleuth: go on?", err=True):
        raise NotAgreed("Nothing was downloaded.")


def show_bisection(result: Bisection) -> None:
    """The result for a person: the table, then the answer in a sentence."""
    show(f"{'torch':<22}  {'outcome':<17}  {'seconds':>7}  why")
    for tried in result.tried:
        show(f"{tried.version:<22}  {tried.outcome:<17}  {tried.seconds:>7.1f}  {tried.why}")
    show()
    show(sentence_of(result))
    for note in (*result.notes, *([result.error] if result.error else [])):
        show(f"  {note}")


def sentence_of(result: Bisection) -> str:
    """The answer as one sentence: `broken since 2.13.0 (2.12.1 passes)`."""
    tested = [t.version for t in result.tried if t.answer.is_evidence]
    where = f"the {len(tested)} {_releases(len(tested))} tested" + (
        f" ({', '.join(tested)})" if tested else ""
    )
    if result.answer == "always":
        return f"always: it fails in {where}"
    if result.answer == "never":
        return f"never: it fails in none of {where}; it may need the machine or the build it was seen on"
    if result.answer == "unclear":
        return "unclear: no answer was found"
    words = [
        f"{c.what} {c.version} ({c.before} {'passes' if c.what == 'broken since' else 'fails'})"
        for c in reversed(result.changes)
    ]
    return "; earlier: ".join([words[0], ", ".join(words[1:])] if words[1:] else words)


def _releases(count: int) -> str:
    return "release" if count == 1 else "releases"
