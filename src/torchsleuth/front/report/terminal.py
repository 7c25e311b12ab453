"""Cases in a terminal: a table of all of them, or one of them in full. Plain lines where there is no terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from torchsleuth.core.cases.folder import CaseFolder
from torchsleuth.core.cases.listing import CaseSummary
from torchsleuth.core.cases.model import Case, best_workaround
from torchsleuth.core.cases.printable import printable
from torchsleuth.front.report import words


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
        ("case", case.id + (f" (rank {case.rank})" if case.rank is not None else "")),
        ("failed", f"{case.kind} while {words.PHASES[case.phase]}"),
        ("error", case.signature.summary),
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
        facts.append(("report", "report.html to look at and attach, issue.md to file"))
    facts.append(("packed in" if packed else "folder", str(folder.path)))
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, Text(printable(value, lines=name == "works")))
    console.print(table)
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
        what = {"program": "the program itself: it fails without the compiler, too"}.get(
            triage.component, triage.component
        )
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
        found.append(("works", f"{works.name}; paste:\n{works.how}"))
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
