"""What one observed run leaves in its folder: a document for each thing collected, and `index.md` over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchsleuth.cases.runs import write_result
from torchsleuth.explain.break_text import break_lines
from torchsleuth.explain.breaks import breaks_of
from torchsleuth.explain.events import Event
from torchsleuth.explain.recompile_text import recompile_lines
from torchsleuth.explain.recompiles import recompiles_of

INDEX = "index.md"


@dataclass(frozen=True)
class Kind:
    """One thing that can be collected: its file, its title, and how events become a value and lines for a person."""

    file: str
    title: str
    of: Callable[[Sequence[Event]], Any]
    lines: Callable[[Any], Iterator[str]]


# By the name of the collector.
KINDS: Mapping[str, Kind] = {
    "breaks": Kind("breaks.json", "Graph breaks", breaks_of, break_lines),
    "recompiles": Kind("recompiles.json", "Recompilations", recompiles_of, recompile_lines),
}


def write_run(
    folder: Path, facts: Mapping[str, Any], events: Sequence[Event], collectors: Sequence[str]
) -> list[str]:
    """Writes the results of a run into its folder; the first line of each, for a person.

    Used as `write_run(run.folder, run.facts(), run.events, ("breaks", "recompiles"))`.
    """
    headlines, index = [], [f"# Run {facts['run']}", ""]
    for kind in [KINDS[name] for name in collectors if name in KINDS]:
        found = kind.of(events)
        write_result(folder, kind.file, {**facts, **found.to_json()})
        lines = list(kind.lines(found))
        headlines.append(lines[0])
        index += [
            f"## {kind.title}",
            "",
            f"As values: [{kind.file}]({kind.file})",
            "",
            "```text",
            *lines,
            "```",
            "",
        ]
    write_result(folder, INDEX, "\n".join(index))
    return headlines
