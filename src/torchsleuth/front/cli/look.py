"""`list`, `show`, `report`, `pack`, `unpack`: look at cases and share them.

Nothing of a case is executed here, and its strings are made safe to print.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.folder import CaseFolder, CaseSummary, list_cases, open_case, salvaged_case
from torchsleuth.core.cases.model import Case, best_workaround
from torchsleuth.core.cases.packing import is_packed, pack_case, read_packed, unpack_case
from torchsleuth.core.cases.scrub import printable
from torchsleuth.core.protocol.codec import to_json
from torchsleuth.front.cli.options import cases_option, json_option, path_option
from torchsleuth.front.cli.output import print_json, say, show
from torchsleuth.front.report import words
from torchsleuth.front.report.terminal import said_of
from torchsleuth.front.supervise.leftovers import leftover_spools


@click.command("list")
@click.option("--page", "as_page", is_flag=True, help="Write them as a page, index.html, beside the cases.")
@cases_option
@json_option
def list_verb(cases_dir: Path, as_page: bool, as_json: bool) -> int:
    """The cases here, newest first.

    \b
    torchsleuth list
    torchsleuth list --page
    torchsleuth list --cases /shared/cases --json
    """
    found = list_cases(cases_dir)
    left = len(leftover_spools(cases_dir))
    if left:
        say(
            f"{left} {'program that died has' if left == 1 else 'programs that died have'} left a record here; "
            f"the next `torchsleuth run` with these cases makes a case of it"
        )
    if as_page:
        from torchsleuth.front.report.pages import write_cases_page

        say(f"page: {write_cases_page(cases_dir, found)}")
    if as_json:
        print_json([to_json(summary) for summary in found])
        return 0
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
        show(f"packed: {packed.path}; the recipient opens it with: torchsleuth show {packed.path.name}")
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


def show_list(cases: Sequence[CaseSummary], cases_dir: Path) -> None:
    """Prints one row per case, newest first."""
    console = _console()
    if not cases:
        _line(console, f"no cases in {cases_dir}; record one with: torchsleuth run SCRIPT")
        return
    table = Table(box=None, pad_edge=False)
    for column in ("case", "kind", "direction", "calls", "repro", "seen", "what failed"):
        table.add_column(column, overflow="ellipsis", no_wrap=column != "what failed")
    for case in cases:
        repro = {True: "verified", False: "no", None: "-"}[case.reproduced]
        calls = "-" if case.calls is None else str(case.calls)
        if case.minified_calls is not None:
            calls += f"→{case.minified_calls}"
        kind = case.kind + (f" r{case.rank}" if case.rank is not None else "")
        cells = [
            case.id,
            kind,
            case.direction or "-",
            calls,
            repro,
            str(case.seen),
            case.error or case.summary,
        ]
        table.add_row(*(Text(printable(cell)) for cell in cells))
    console.print(table)


def show_case(folder: CaseFolder, packed: bool = False) -> None:
    """Prints everything that is known about one case, and what to type next."""
    console = _console()
    case = folder.case
    facts: list[tuple[str, str]] = [
        ("case", case.id + case.on_ranks),
        ("failed", f"{case.kind} while {words.PHASES[case.phase]}"),
        ("error", words.said(case, said_of(folder))),
        ("backend", f"{case.backend}, torch {case.torch}, {case.device}"),
    ]
    if case.graph is not None:
        after = {"aot": "after AOTAutograd", "dynamo": "after Dynamo", None: ""}[case.after]
        facts.append(
            ("graph", f"{case.direction}, {case.graph.calls} calls, {case.graph.inputs} inputs, {after}")
        )
        facts.append(("source", _some(case.graph.source_lines)))
    facts += _blame(case)
    if case.analysis is not None:
        facts.append(("begins at", case.analysis.words))
    if case.minified is not None and case.minified.calls is not None:
        calls = "1 call" if case.minified.calls == 1 else f"{case.minified.calls} calls"
        facts.append(("minified", f"{calls}: {_some(case.minified.ops)}"))
    facts.append(
        ("repro", words.how_sure(case) if case.no_repro else f"{_script(folder)}; {words.how_sure(case)}")
    )
    if case.seen > 1:
        facts.append(("seen", f"{case.seen} times, last {case.last_seen}"))
    if case.kept is not None:
        facts.append(
            (
                "values",
                f"{case.kept.get('by_value')} inputs kept by value, {case.kept.get('by_spec')} by spec",
            )
        )
    if not packed and folder.has("report.html"):
        file = ", issue.md to file" if folder.has("issue.md") else ""
        facts.append(("report", f"report.html to look at and attach{file}"))
    facts.append(("packed in" if packed else "folder", str(folder.path)))
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, Text(printable(value)))
    console.print(table)
    works = best_workaround(case.workarounds or ())
    if works is not None:  # as it is to be pasted: a line that is folded is no Python any more
        console.print()
        _line(console, "paste:")
        for line in printable(works.how, lines=True).splitlines():
            _line(console, line)
    if packed:
        console.print()
        _line(console, f"next: torchsleuth unpack {folder.path}")
    elif case.no_repro is None:
        script = folder.path / _script(folder)
        console.print()
        _line(console, f"next: torchsleuth verify {case.id}, or: python {script}")


def _blame(case: Case) -> list[tuple[str, str]]:
    """The user's line, whose fault it is, and what was tried and works."""
    found: list[tuple[str, str]] = []
    triage = case.triage
    if triage is not None and triage.component:
        part = f", {triage.part}" if triage.part and triage.component != "program" else ""
        what = words.whose_bug(case) if triage.component == "program" else triage.component
        if triage.user_line:
            found.append(("your line", f"{triage.user_line}: {triage.code or ''}".rstrip(": ")))
        elif triage.not_narrowed:
            found.append(("your line", triage.not_narrowed))
        found.append(("at fault", f"{what}{part} {' '.join(triage.ops[:6])}".rstrip()))
        if triage.detail:
            found.append(("because", triage.detail))
    elif triage is not None and triage.error:
        found.append(("at fault", f"not known: {triage.error}"))
    works = best_workaround(case.workarounds or ())
    if works is not None:
        found.append(("works", words.about_workaround(works)))
    return found


def _script(folder: CaseFolder) -> str:
    return "repro.py" if folder.has("repro.py") else "original.py"


def _console() -> Console:
    """Where there is no terminal to fit into, lines are as long as a log can bear."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=140)


def _line(console: Console, text: str) -> None:
    """One line as it is: no markup in it is obeyed."""
    console.print(Text(printable(text)), soft_wrap=True)


def _some(lines: Sequence[str], at_most: int = 6) -> str:
    rest = len(lines) - at_most
    return ", ".join(lines[:at_most]) + (f" and {rest} more lines" if rest > 0 else "") if lines else "-"
