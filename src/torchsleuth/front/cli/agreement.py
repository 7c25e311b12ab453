"""Before a verb executes what a case holds: a case that was not made here is asked about, once."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.folder import CaseFolder, open_case
from torchsleuth.core.cases.ownership import is_ours, mark_as_ours
from torchsleuth.front.cli.options import Function
from torchsleuth.front.cli.output import say


class NotAgreed(SleuthError):
    """Nobody said that this may be done."""


def yes_option(function: Function) -> Function:
    """`--yes`: code of a case that was not made here is executed without asking."""
    return click.option("--yes", is_flag=True, help="Execute a case that was not made here without asking.")(
        function
    )


def case_to_execute(cases_dir: Path, wanted: str, yes: bool) -> CaseFolder:
    """The case of that name, once it may be executed: `case_to_execute(cases_dir, "last", yes=False)`."""
    folder = open_case(cases_dir, wanted)
    agree_to(folder, yes)
    return folder


def agree_to(folder: CaseFolder, yes: bool) -> None:
    """Goes on where the case was made here, or somebody says that its code may run; says `NotAgreed` elsewhere."""
    if is_ours(folder.path, folder.case.id):
        return
    about = f"case {folder.case.id} was not made here, and this executes code that is in it"
    if not yes and not sys.stdin.isatty():
        raise NotAgreed(f"{about}: read it first ({folder.path}), then say --yes; nothing was executed.")
    say(f"{about} (graph.py, record.json, program.py, original.py, repro.py in {folder.path})")
    if not yes and not click.confirm("torchsleuth: go on?", err=True):
        raise NotAgreed("nothing was executed.")
    mark_as_ours(folder.path, folder.case.id)
