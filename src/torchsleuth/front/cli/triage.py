"""`triage` and `workaround`: which part, operator and line is at fault, and what was tried and helps."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

import click

from torchsleuth.core.cases.analysis import Culprit
from torchsleuth.core.cases.folder import open_case
from torchsleuth.core.cases.model import Case, Triage, Workaround, best_workaround
from torchsleuth.core.changes import Change
from torchsleuth.front.cli.options import budget_option, cases_option, json_option, workers_option
from torchsleuth.front.cli.output import print_json, say, show
from torchsleuth.front.cli.wanted import agree_to, case_to_execute, yes_option
from torchsleuth.front.supervise.case_at_work import CaseAtWork, Processes, processes_for
from torchsleuth.front.supervise.program_cures import try_found_on_program, try_on_program
from torchsleuth.front.supervise.program_runs import program_of
from torchsleuth.front.supervise.road import blame, find_workarounds, sentences


@click.command("triage", context_settings={"ignore_unknown_options": True})
@click.argument("case_or_script", default="last")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@budget_option(120)
@yes_option
@workers_option
@cases_option
@json_option
def triage_verb(
    case_or_script: str,
    arguments: tuple[str, ...],
    budget: float,
    yes: bool,
    workers: str,
    cases_dir: Path,
    as_json: bool,
) -> int:
    """Name the component, the part of it, the operator and the line of the program at fault.

    Every answer is a run that differs in just that: with a pass left out, an operator kept as an eager kernel, another
    setting. Of a script instead of a case, the whole program is run with more and more of the compiler. Executes the
    case, and asks once about one that was not made here (--yes).

    \b
    torchsleuth triage last
    torchsleuth triage train.py --epochs 1
    """
    started = time.monotonic()
    if Path(case_or_script).suffix == ".py" and Path(case_or_script).is_file():
        return _program([case_or_script, *arguments], cases_dir, budget, as_json)
    if arguments:
        raise click.UsageError(f"a case takes no arguments, and {case_or_script} is not a script here")
    folder = case_to_execute(cases_dir, case_or_script, yes)
    with processes_for(folder, workers) as processes:
        left = max(1.0, budget - (time.monotonic() - started))
        case = CaseAtWork(folder, processes, time.monotonic() + left, _say_triage, sentences(_say_triage))
        blame(case, left)
        folder = case.folder
    if as_json:
        print_json(folder.document())
    else:
        show_triage(folder.case.triage or Triage())
    found = folder.case.triage
    return 0 if found is not None and found.pinned else 1


def _program(argv: list[str], cases_dir: Path, budget: float, as_json: bool) -> int:
    """The ladder for a whole program; a case that it leaves is named for what comes next."""
    from torchsleuth.front.supervise.program_blame import component_of_program

    found = component_of_program(argv, cases_dir=cases_dir, say=_say_triage, timeout=budget)
    if as_json:
        print_json({"program": argv, "case": found.case, "triage": dataclasses.asdict(found.triage)})
    else:
        show_triage(found.triage)
        if found.case:
            show()
            show(f"its first failure is a case: torchsleuth triage {found.case}")
    return 0 if found.triage.pinned else 1


def _say_triage(text: str) -> None:
    say(f"triage: {text}")


def show_triage(found: Triage) -> None:
    """The finding for a person: their line first."""
    if found.error is not None:
        show(found.error)
        return
    show_user_line(found)
    if found.forward_op:
        show(f"gradient of {found.forward_op}")
    part = f", {found.part}" if found.part else ""
    show(f"at fault    {found.component or 'not known'}{part}")
    if found.ops:
        show(f"operators   {', '.join(found.ops[:6])}")
    if found.detail:
        show(f"because     {found.detail}")
    if found.subsystem and found.application:
        show(f"which       application {found.application} of {found.subsystem}")
    if found.flags:
        show(f"settings    {', '.join(found.flags)}")
    if found.labels:
        show(f"labels      {', '.join(found.labels)}")
    if found.trials is not None and found.seconds is not None:
        show(f"            {found.trials} trials, {found.seconds:.1f} s")


def show_user_line(found: Triage | Culprit) -> None:
    """Where it is in the program, and what stands there."""
    if found.user_line:
        where = f"  in {found.function}" if found.function else ""
        module = f" of {found.module}" if found.module else ""
        show(f"your line   {found.user_line}{where}{module}")
        if found.code:
            show(f"                {found.code}")


# Of the time to spend, where the case has not been triaged yet.
SHARE_FOR_TRIAGE = 0.4


@click.command("workaround")
@click.argument("wanted", default="last", metavar="[CASE]")
@click.option("--program", "on_program", is_flag=True, help="Also run the whole program with the best one.")
@click.option("--all", "everything", is_flag=True, help="With --program: run it with every verified one.")
@budget_option(300, "Seconds to spend; with --program the runs of the program have as long again.")
@yes_option
@workers_option
@cases_option
@json_option
def workaround_verb(
    wanted: str,
    on_program: bool,
    everything: bool,
    budget: float,
    yes: bool,
    workers: str,
    cases_dir: Path,
    as_json: bool,
) -> int:
    """Try what could make the failing graph pass, and show the mildest way that works.

    Each is tried on the whole captured graph: it must compile, run to its end and give eager's numbers. --program
    runs your program, unchanged, with the workaround put in from outside, and shows its command first. Executes the
    case, and asks once about one that was not made here (--yes). Status 0 with a verified one, 1 without.

    \b
    torchsleuth workaround last
    torchsleuth workaround 3f9a --program
    """
    if everything and not on_program:
        raise click.UsageError("--all says which workarounds to run the program with: add --program")
    folder = open_case(cases_dir, wanted)
    if on_program or folder.case.graph is None:  # before minutes are spent on the rest
        program = program_of(folder)
        say(f"this runs, in {program.cwd}: {shlex.join(program.command)}")
    agree_to(folder, yes)
    case = CaseAtWork(folder, Processes(), time.monotonic() + budget, say, sentences(say))
    if folder.case.graph is None:  # there is only the program to try anything on
        try_on_program(case)
    else:
        found = _tried(case, workers, budget)
        if on_program:
            case.deadline = time.monotonic() + budget
            try_found_on_program(case, found, everything)
    folder = case.folder
    kept = folder.case.workarounds or ()
    best = best_workaround(kept)
    if as_json:
        print_json(folder.document())
    else:
        show_workarounds(folder.case, kept, best)
    return 0 if best is not None else 1


def _tried(case: CaseAtWork, workers: str, budget: float) -> list[Change]:
    with processes_for(case.folder, workers) as case.processes:
        if case.case.triage is None:
            say("nobody has said yet who is at fault; that comes first")
            blame(case, budget * SHARE_FOR_TRIAGE)
        return find_workarounds(case, max(1.0, case.left))


def show_workarounds(case: Case, found: Sequence[Workaround], best: Workaround | None) -> None:
    """For a person: the user's line, under it the best workaround with what to paste, then what else was tried."""
    _show_line(case)
    if best is None:
        show("no workaround was verified")
    else:
        show(f"paste: {best.name}")
        show()
        for line in best.how.splitlines():
            show(line)
        show()
        show(f"  switches off: {best.disables or '-'}")
        show(f"  cost: {_cost(best)}")
        show(f"  verified: {_verified(case, best)}")
    others = [each for each in found if each is not best]
    if others:
        show()
        show("also tried")
    for each in others:
        works = each.verified and each.program is not False
        what = each.how.splitlines()[-1] if works else each.error or ""
        times = "" if each.cost is None else f"{each.cost:.2f}x"
        show(f"  {'works' if works else 'no':<6}{each.name:<44} {times:<7} {what}")


def _show_line(case: Case) -> None:
    triage = case.triage
    place = triage.user_line if triage else None
    if place is None and case.graph is not None and len(case.graph.source_lines) == 1:
        place = case.graph.source_lines[0]
    if place:
        code = f"    {triage.code.strip()}" if triage and triage.code else ""
        show(f"{place}{code}")
    show(f"{case.kind}: {case.signature.summary}")
    show()


def _cost(each: Workaround) -> str:
    if each.cost is None:
        return "not known: the graph does not run when it is fully compiled, or too short to measure"
    return f"{each.cost:.2f} times the run of the fully compiled graph"


def _verified(case: Case, each: Workaround) -> str:
    if case.graph is None:
        return "the whole program passes"
    graph = "the whole captured graph compiles, runs and gives eager's numbers"
    if each.program:
        return f"{graph}, and the whole program passes"
    return f"{graph}; the program itself was not run with it (--program does)"
