"""Everything that a report shows of a case, gathered from its folder: each thing there, or the sentence why it is not.

Nothing is executed, and every file is read through the one door. What is gathered is text as it was kept; whoever
shows it makes it safe for its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from torchsleuth.core.cases.door import NotRead, is_file_inside, json_inside, text_inside
from torchsleuth.core.cases.folder import CaseFolder
from torchsleuth.core.cases.record import record_at
from torchsleuth.front.report.drawing import Drawing, TooLarge, draw
from torchsleuth.front.report.graph_reading import Graph, NotAGraph, read_function, read_graph

Thing = TypeVar("Thing")

RUNS = "runs"
# What one observed run may have left, and what each says.
OBSERVED: dict[str, str] = {
    "breaks.json": "graph breaks",
    "recompiles.json": "guards and recompilations",
    "times.json": "compile time",
}
_MOST_SCRIPT, _MOST_LOG, _MOST_JSON, _MOST_PICTURE = 1 << 20, 4 << 20, 4 << 20, 150 << 10


@dataclass(frozen=True)
class Found(Generic[Thing]):
    """A thing, or why there is none: `Found(None, "it was not recorded")`."""

    thing: Thing | None = None
    missing: str = ""


@dataclass(frozen=True)
class Evidence:
    """What is known of one case. `lost` says what of its case.json could not be read."""

    folder: CaseFolder
    lost: tuple[str, ...] = ()
    script: str = ""  # the name of the script that is shown
    repro: Found[str] = Found()
    graph: Found[Graph] = Found()
    drawing: Found[Drawing] = Found()
    traceback: Found[str] = Found()
    environment: Found[str] = Found()
    log: Found[str] = Found()
    analysis: Found[object] = Found()
    picture: Found[str] = Found()
    observed: Mapping[str, Found[object]] = field(default_factory=dict)


def gather(folder: CaseFolder, lost: tuple[str, ...] = ()) -> Evidence:
    """All evidence of a case: `gather(open_case("cases", "last")).drawing.missing`."""
    script = next((name for name in ("repro.py", "original.py") if folder.has(name)), "")
    repro = _text(folder, script, _MOST_SCRIPT) if script else Found[str](None, _no_script(folder))
    small = folder.case.minified is not None and script == "repro.py"
    return Evidence(
        folder,
        lost,
        script,
        repro,
        _graph(folder),
        _drawing(repro) if small else Found(None, "the case was not made smaller"),
        _text(folder, "traceback.txt", _MOST_LOG),
        _text(folder, "environment.txt", _MOST_SCRIPT),
        _text(folder, "log.txt", _MOST_LOG),
        _json(folder.path, "analysis.json", "numbers were not analysed: torchsleuth analyze"),
        _text(folder, "analysis.svg", _MOST_PICTURE),
        _observed(folder),
    )


def _no_script(folder: CaseFolder) -> str:
    return folder.case.no_repro or "no script was written"


def _text(folder: CaseFolder, name: str, most: int) -> Found[str]:
    if not folder.has(name):
        return Found(None, f"there is no {name} in the case")
    try:
        return Found(text_inside(folder.path, name, most))
    except NotRead as why:
        return Found(None, str(why))


def _json(folder: Path, name: str, missing: str) -> Found[object]:
    if not is_file_inside(folder, name):
        return Found(None, missing)
    try:
        return Found(json_inside(folder, name, _MOST_JSON))
    except NotRead as why:
        return Found(None, str(why))


def _graph(folder: CaseFolder) -> Found[Graph]:
    if not folder.has("graph.py"):
        return Found(None, "the failure came before there was a graph")
    record = record_at(folder.path)  # without one the marks in the graph's text have to do
    try:
        return Found(read_graph(folder.text("graph.py"), {} if record is None else record.lines))
    except ValueError as why:
        return Found(None, f"graph.py cannot be shown by calls: {why}")


def _drawing(repro: Found[str]) -> Found[Drawing]:
    if repro.thing is None:
        return Found(None, repro.missing)
    try:
        return Found(draw(read_function(repro.thing)))
    except (NotAGraph, TooLarge) as why:
        return Found(None, f"the script's function is not drawn: {why}")


def _observed(folder: CaseFolder) -> dict[str, Found[object]]:
    """What the run that the case was recorded in has left beside the cases."""
    run = folder.case.extra.get("run")
    missing = "the run was not observed: torchsleuth run --explain"
    if not isinstance(run, str) or not run.replace("-", "").isalnum():
        return {name: Found(None, missing) for name in OBSERVED}
    return {name: _json(folder.path.parent, f"{RUNS}/{run}/{name}", missing) for name in OBSERVED}
