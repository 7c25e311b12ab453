"""`report`: one case as a page to look at and attach, and as a text to file. Nothing of the case is executed."""

from __future__ import annotations

from pathlib import Path

import click

from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.packing import is_packed
from torchsleuth.core.cases.salvage import salvaged_case
from torchsleuth.front.cli.options import cases_option, json_option, path_option
from torchsleuth.front.cli.output import print_json, say, show


class Packed(SleuthError):
    """A packed case has no folder to write into."""


@click.command("report")
@click.argument("case", default="last")
@path_option("-o", "--out", about="Where to; the case's own folder by default.", folder=True)
@cases_option
@json_option
def report_verb(case: str, out: Path | None, cases_dir: Path, as_json: bool) -> int:
    """Write report.html, one page that needs nothing else, and issue.md, under the headings of PyTorch's bug template.

    Secrets and paths of the machine are taken out of both, and issue.md says what was. Source lines of your program are
    in them: read them before you send them. What of a case cannot be read is named, and the rest is shown.

    \b
    torchsleuth report last
    torchsleuth report 3f9a -o to-attach
    """
    if is_packed(case):
        raise Packed(f"{case} is a packed case; unpack it first: torchsleuth unpack {case}")
    folder, lost = salvaged_case(cases_dir, case)
    from torchsleuth.front.report.html import write_report

    page, issue = write_report(folder, lost, out)
    if as_json:
        print_json({"case": folder.case.id, "report": str(page), "issue": str(issue), "not_read": lost})
        return 0
    for sentence in lost:
        say(sentence)
    show(f"to look at and attach: {page}")
    show(f"to file:               {issue}")
    return 0
