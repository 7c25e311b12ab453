"""What one observed run leaves in its folder: a document for each thing collected, and `index.md` over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchsleuth.core.cases.folder import write_result
from torchsleuth.front.observe.breaks import break_lines, breaks_of
from torchsleuth.front.observe.events import Event, Facts
from torchsleuth.front.observe.profile import profile_of
from torchsleuth.front.observe.profile_text import profile_files, profile_lines
from torchsleuth.front.observe.recompiles import recompile_lines, recompiles_of
from torchsleuth.front.observe.trace import trace_files, trace_lines, trace_of

INDEX = "index.md"


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
KINDS: Mapping[str, Kind] = {
    "breaks": Kind("breaks.json", "Graph breaks", breaks_of, break_lines),
    "recompiles": Kind("recompiles.json", "Recompilations", recompiles_of, recompile_lines),
    "times": Kind("times.json", "Compile time", profile_of, profile_lines, profile_files),
    "trace": Kind("trace.json", "The capture", trace_of, trace_lines, trace_files),
}


def write_run(folder: Path, facts: Facts, events: Sequence[Event], collectors: Sequence[str]) -> list[str]:
    """Writes the results of a run into its folder; for a person, the first line of each and what it names first.

    Used as `write_run(run.folder, run.facts(), run.events, ("breaks", "recompiles"))`.
    """
    headlines, index = [], [f"# Run {facts['run']}", ""]
    for kind in [KINDS[name] for name in collectors if name in KINDS]:
        found = kind.of(events)
        write_result(folder, kind.file, {**facts, **found.to_json()})
        more = kind.more(found)
        for name, result in more.items():
            write_result(folder, name, result)
        lines = list(kind.lines(found))
        headlines += [lines[0], *_first(lines[1:])]
        index += [
            f"## {kind.title}",
            "",
            ", ".join(f"[{name}]({name})" for name in (kind.file, *more)),
            "",
            "```text",
            *lines,
            "```",
            "",
        ]
    write_result(folder, INDEX, "\n".join(index))
    return headlines


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
