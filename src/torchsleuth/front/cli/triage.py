"""`triage`: which part of the compiler, which operator and which line of the program is at fault."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import click

from torchsleuth.core.cases.model import Triage
from torchsleuth.front.cli.agreement import case_to_execute, yes_option
from torchsleuth.front.cli.options import budget_option, cases_option, json_option, workers_option
from torchsleuth.front.cli.output import print_json, say, show
from torchsleuth.front.supervise.case_at_work import CaseAtWork, processes_for
from torchsleuth.front.supervise.road import blame, sentences


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
        case = CaseAtWork(folder, processes, time.monotonic() + left, _say, sentences(_say))
        blame(case, left)
        folder = case.folder
    if as_json:
        print_json({**folder.case.to_json(), "path": str(folder.path)})
    else:
        show_triage(folder.case.triage or Triage())
    found = folder.case.triage
    return 0 if found is not None and found.pinned else 1


def _program(argv: list[str], cases_dir: Path, budget: float, as_json: bool) -> int:
    """The ladder for a whole program; a case that it leaves is named for what comes next."""
    from torchsleuth.front.supervise.program_blame import component_of_program

    found = component_of_program(argv, cases_dir=cases_dir, say=_say, timeout=budget)
    if as_json:
        print_json({"program": argv, "case": found.case, "triage": dataclasses.asdict(found.triage)})
    else:
        show_triage(found.triage)
        if found.case:
            show()
            show(f"its first failure is a case: torchsleuth triage {found.case}")
    return 0 if found.triage.pinned else 1


def _say(text: str) -> None:
    say(f"triage: {text}")


def show_triage(found: Triage) -> None:
    """The finding for a person: their line first."""
    if found.error is not None:
        show(found.error)
        return
    if found.user_line:
        where = f"  in {found.function}" if found.function else ""
        module = f" of {found.module}" if found.module else ""
        show(f"your line   {found.user_line}{where}{module}")
        if found.code:
            show(f"                {found.code}")
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
