"""The pages beside that of a case: of a run that was observed, of a sweep, of all cases here.

A run leaves a document for each thing collected, and `index.html` over them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from torchsleuth.core.cases.folder import RUNS, CaseSummary, write_result
from torchsleuth.core.cases.scrub import hidden
from torchsleuth.front.observe.breaks import best_of, break_lines, breaks_of
from torchsleuth.front.observe.events import Event, Facts, counted
from torchsleuth.front.observe.profile import PHASES, Profile, profile_of
from torchsleuth.front.observe.profile_text import (
    flame_of,
    flame_svg,
    loop_lines,
    profile_files,
    profile_lines,
)
from torchsleuth.front.observe.recompiles import objections, recompile_lines, recompiles_of
from torchsleuth.front.observe.trace import Trace, trace_lines, trace_of
from torchsleuth.front.report.html import PAGE, as_image, render
from torchsleuth.front.report.words import COMPONENTS, KINDS

if TYPE_CHECKING:
    from torchsleuth.front.sweep.running import SweepResult

INDEX = "index.html"


@dataclass(frozen=True)
class Kind:
    """One thing that can be collected: its file, its title, and how events become a value and lines for a person.

    `more` are files that are made of the value beside that.
    """

    file: str
    title: str
    of: Callable[[Sequence[Event]], Any]
    lines: Callable[[Any], Iterator[str]]
    more: Callable[[Any], Facts] = lambda _: {}


# By the name of the collector.
COLLECTED: Mapping[str, Kind] = {
    "breaks": Kind("breaks.json", "Graph breaks", breaks_of, break_lines),
    "recompiles": Kind("recompiles.json", "Recompilations", recompiles_of, recompile_lines),
    "times": Kind("times.json", "Compile time", profile_of, profile_lines, profile_files),
    "trace": Kind("trace.json", "The capture", trace_of, trace_lines),
}


def write_run(
    folder: Path, program: str, facts: Facts, found: Mapping[str, Any], others: Sequence[str] = ()
) -> Path:
    """Writes what was found of a run into its folder, a document and files for each; where the page over them is.

    `others` are files that lie there already.
    Used as `write_run(run.folder, "train.py", run.facts(), {"breaks": found})`.
    """
    files = [*others]
    for name, each in found.items():
        kind = COLLECTED[name]
        for file, result in {kind.file: {**facts, **each.to_json()}, **kind.more(each)}.items():
            write_result(folder, file, result)
            files.append(file)
    return write_result(folder, INDEX, run_page(program, facts, found, files))


def headlines(found: Mapping[str, Any]) -> list[str]:
    """For a person: the first line of each thing found, and what it names first."""
    told = []
    for name, each in found.items():
        lines = list(COLLECTED[name].lines(each))
        told += [lines[0], *_first(lines[1:])]
    return told


_MOST_FIRST = 6


def _first(lines: Sequence[str]) -> list[str]:
    """Of lines that tell one thing after the other, `1. ...`, the first thing.

    >>> _first(["", "1. a.py:3 in f", "   why     print", "", "2. a.py:9 in g"])
    ['1. a.py:3 in f', '   why     print']
    """
    if len(lines) < 2 or not lines[1].startswith("1. "):
        return []
    end = next((at for at, line in enumerate(lines) if at and not line), len(lines))
    return list(lines[1:end][:_MOST_FIRST])


@dataclass(frozen=True)
class _Section:
    found: Any
    lines: Sequence[str]


def run_page(program: str, facts: Facts, found: Mapping[str, Any], files: Sequence[str] = ()) -> str:
    """The page of a run: `run_page("train.py", run.facts(), {"breaks": breaks_of(run.events)})`."""
    sections = {name: _Section(each, list(COLLECTED[name].lines(each))) for name, each in found.items()}
    profile = found.get("times") or Profile()
    told = [each.lines[0] for each in sections.values()]
    warnings = [
        f"{each['function']} could not be compiled: {each['error']}"
        for each in facts.get("failed_compiles", ())
        if each["error"]
    ]
    if facts.get("ended_early"):
        warnings.append("The program was ended early; this is what was seen until then.")
    elif facts.get("program_status"):
        warnings.append(f"The program ended with status {facts['program_status']}.")
    return render(
        "run.html.jinja",
        title=f"run of {program}",
        headline=told[0] if len(told) == 1 else f"run of {program}",
        sections=[
            *((name, COLLECTED[name].title) for name in sections),
            *([("files", "Files")] if files else []),
        ],
        warnings=warnings,
        own=("page.js", "trace.js") if "trace" in found else ("page.js",),
        **dict.fromkeys(COLLECTED) | sections,
        shorter=shorter,
        counted=counted,
        objections=objections,
        best_of=best_of,
        PHASES=PHASES,
        cause=list(loop_lines(profile)),
        flame=as_image(flame_svg(flame_of(profile), "compile time")) if profile.steps else None,
        data=_as_data(found.get("trace")),
        files=files,
    )


def shorter(path: str) -> str:
    """A path as a person would type it in this folder: `shorter("/home/me/model.py")`."""
    near = os.path.relpath(path)
    return near if len(near) < len(path) and not near.startswith("../..") else path


def _as_data(trace: Trace | None) -> Markup:
    """A capture for the page's own script; nothing in it ends the element that holds it."""
    text = json.dumps(trace.to_json()["frames"]) if trace is not None else ""
    return Markup(hidden(text).replace("<", "\\u003c"))


def sweep_page(result: SweepResult, scripts: Mapping[str, str]) -> str:
    """The page of a sweep; `scripts` are the repros by bucket: `sweep_page(result_of(sweep, known), {})`."""
    eager = {(cell.program, cell.setting): cell for cell in result.eager}
    cells = {(cell.program, cell.setting): cell for cell in result.cells}
    columns = list(dict.fromkeys(cell.setting for cell in result.eager))
    return render(
        "sweep.html.jinja",
        title="sweep",
        headline=f"{result.counts['passes']} of {result.counts['wanted']} runs pass",
        sections=[
            ("table", "Programs and settings"),
            *((f"bucket-{n}", f"#{n}") for n in range(1, len(result.buckets) + 1)),
        ],
        result=result,
        rows=[
            (
                program,
                [
                    *(eager.get((program, column)) for column in columns),
                    *(cells.get((program, setting)) for setting in result.settings),
                ],
            )
            for program in result.programs
        ],
        columns=columns,
        numbers={
            each.key: number
            for number, bucket in enumerate(result.buckets, 1)
            for each in (bucket, *bucket.same)
        },
        scripts=scripts,
        KINDS=KINDS,
        COMPONENTS=COMPONENTS,
    )


def write_cases_page(cases_dir: Path, cases: Sequence[CaseSummary]) -> Path:
    """The page of all cases, beside them: `write_cases_page(Path("cases"), list_cases("cases"))`."""
    runs = sorted((path.parent.name for path in (cases_dir / RUNS).glob(f"*/{INDEX}")), reverse=True)
    text = render(
        "cases.html.jinja",
        title="cases",
        headline=counted(len(cases), "case"),
        sections=[("cases", "Cases"), *([("runs", "Observed runs")] if runs else [])],
        cases=cases,
        pages={case.id for case in cases if (case.path / PAGE).is_file()},
        runs=runs[:200],
        KINDS=KINDS,
        COMPONENTS=COMPONENTS,
    )
    return write_result(cases_dir, INDEX, text)
