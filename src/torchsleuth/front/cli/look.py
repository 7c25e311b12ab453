"""`list`, `show`, `report`, `pack`, `unpack`: look at cases and share them.

Nothing of a case is executed here, and its strings are made safe to print.
"""

from __future__ import annotations

from pathlib import Path

import click

from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.folder import CaseFolder, list_cases, open_case, salvaged_case
from torchsleuth.core.cases.packing import is_packed, pack_case, read_packed, unpack_case
from torchsleuth.core.protocol.codec import to_json
from torchsleuth.front.cli.options import cases_option, json_option, path_option
from torchsleuth.front.cli.output import print_json, say, show
from torchsleuth.front.supervise.leftovers import leftover_spools


@click.command("list")
@cases_option
@json_option
def list_verb(cases_dir: Path, as_json: bool) -> int:
    """The cases here, newest first.

    \b
    torchsleuth list
    torchsleuth list --cases /shared/cases --json
    """
    found = list_cases(cases_dir)
    left = len(leftover_spools(cases_dir))
    if left:
        say(
            f"{left} {'program that died has' if left == 1 else 'programs that died have'} left a record here; "
            f"the next `torchsleuth run` with these cases makes a case of it"
        )
    if as_json:
        print_json([to_json(summary) for summary in found])
        return 0
    from torchsleuth.front.report.terminal import show_list

    show_list(found, cases_dir)
    return 0


@click.command("show")
@click.argument("case", default="last")
@cases_option
@json_option
def show_verb(case: str, cases_dir: Path, as_json: bool) -> int:
    """One case: what failed, where, and what is known about it. CASE is an id, a prefix, a path, `last`,
    or a packed file.

    \b
    torchsleuth show last
    torchsleuth show 3f9a --json
    """
    packed = is_packed(case)
    folder = CaseFolder(Path(case), read_packed(Path(case))) if packed else open_case(cases_dir, case)
    if as_json:
        print_json(folder.document())
        return 0
    from torchsleuth.front.report.terminal import show_case

    show_case(folder, packed)
    return 0


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
    from torchsleuth.front.report.words import whose_bug

    page, issue = write_report(folder, lost, out)
    if as_json:
        print_json(
            {
                "case": folder.case.id,
                "report": str(page),
                "issue": str(issue) if issue else None,
                "not_read": lost,
            }
        )
        return 0
    for sentence in lost:
        say(sentence)
    show(f"to look at and attach: {page}")
    if issue is not None:
        show(f"to file:               {issue}")
    else:
        show(f"to file:               nothing: {whose_bug(folder.case)}")
    return 0


@click.command("pack")
@click.argument("case", default="last")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Where to."
)
@cases_option
@json_option
def pack_verb(case: str, output: Path | None, cases_dir: Path, as_json: bool) -> int:
    """Write a case into one file to share, and list what is in it and what was removed.

    Secrets, the home folder, the user's name, how the program was started and work files are removed. Source lines of
    your program and the values of kept inputs are in it: read the list before you send it.

    \b
    torchsleuth pack last
    torchsleuth pack 3f9a -o broken-softmax.zip
    """
    folder = open_case(cases_dir, case)
    packed = pack_case(folder, output or Path(f"torchsleuth-{folder.case.id}.zip"))
    if as_json:
        print_json(
            {
                "path": str(packed.path),
                "files": [{"name": name, "bytes": size} for name, size in packed.files],
                "removed": [{"name": name, "why": why} for name, why in packed.removed],
            }
        )
    else:
        show(str(packed).rstrip(), lines=True)
        show(f"packed: {packed.path}; the other side looks at it with: torchsleuth show {packed.path.name}")
    return 0


@click.command("unpack")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@cases_option
@json_option
def unpack_verb(file: Path, cases_dir: Path, as_json: bool) -> int:
    """Put a packed case among the cases here, so that other verbs can work on it. Nothing of it is executed.

    \b
    torchsleuth unpack torchsleuth-3f9a1c07.zip
    """
    folder = unpack_case(file, cases_dir)
    if as_json:
        print_json(folder.document())
    else:
        show(f"unpacked: {folder.path}; next: torchsleuth show {folder.case.id}")
    return 0
