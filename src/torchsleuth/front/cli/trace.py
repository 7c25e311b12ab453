"""`trace`: the capture from inside, and every graph at every stage.

The debug folder of the run has a folder for each compile, and in it the stages of its graphs, numbered in the order in
which they went through them: texts that the processes left, and scripts and drawings made of its graph records.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from torchsleuth.core.cases.door import NotRead, text_inside
from torchsleuth.core.cases.folder import run_folder, write_result
from torchsleuth.core.cases.record import GraphRecord, read_record
from torchsleuth.core.cases.spool import watched_processes
from torchsleuth.core.watching import ARTEFACTS_VARIABLE, INSTRUCTIONS_VARIABLE
from torchsleuth.front.cli.observed import (
    ObservedRun,
    ProgramToObserve,
    observed_run,
    program_to_observe,
    say_no_graph,
)
from torchsleuth.front.cli.options import ProgramCommand, log_environment, log_option
from torchsleuth.front.cli.output import print_json, say, show
from torchsleuth.front.observe.events import ReusedIds
from torchsleuth.front.observe.trace import Trace, trace_lines, trace_of
from torchsleuth.front.report.drawing import MOST_IN_A_FILE, TooLarge, draw
from torchsleuth.front.report.graph_reading import NotAGraph, read_graph
from torchsleuth.front.report.pages import write_run
from torchsleuth.torch_core.repro.script import script_text

# What the debug folder can hold; the last two only on request.
KINDS = ("graphs", "runnable", "bytecode", "ir", "code", "torch-trace", "diagram", "profile")
USUAL = KINDS[:-2]
DEBUG = "debug"
MOST_TEXT = 32 << 20
_LOGS = {"torch": "torch's own trace, which tlparse reads", "compiler": "what the compiler logged"}


def _kinds(_ctx: click.Context, _parameter: click.Parameter, given: str) -> tuple[str, ...]:
    if given in ("all", "none"):
        return KINDS if given == "all" else ()
    wanted: list[str] = []
    for word in filter(None, given.split(",")):
        name = word.lstrip("+-")
        if name not in KINDS:
            raise click.BadParameter(f"{name!r}; it must be one of {', '.join(KINDS)}, or all, or none.")
        if word[0] in "+-" and not wanted:
            wanted = list(USUAL)
        wanted = [each for each in wanted if each != name] + ([] if word[0] == "-" else [name])
    return tuple(wanted)


@click.command("trace", cls=ProgramCommand)
@click.option("--instructions", is_flag=True, help="Each bytecode instruction as well.")
@click.option(
    "--artefacts",
    "kinds",
    default=",".join(USUAL),
    callback=_kinds,
    metavar="LIST",
    help=f"What the debug folder holds: of {', '.join(KINDS)}; `+diagram` adds to what is usual, `-ir` takes away; "
    "all, or none.  [default: all but diagram and profile]",
)
@log_option
@program_to_observe
def trace_verb(
    program: ProgramToObserve, instructions: bool, kinds: Sequence[str], log_levels: dict[str, str]
) -> int:
    """What the capture did, frame by frame, and every graph at every stage.

    Per frame: functions gone through, graph breaks, graphs handed on and why, guards, side effects. The run's folder
    gets index.html (a page to search), trace.json and debug/ with numbered files and an index.

    \b
    torchsleuth trace train.py --epochs 1
    torchsleuth trace --instructions --only forward train.py
    torchsleuth trace --artefacts +diagram,-torch-trace --log dynamo=debug train.py
    """
    environment = {ARTEFACTS_VARIABLE: ",".join(kinds), **log_environment(log_levels, os.environ)}
    if instructions:
        environment[INSTRUCTIONS_VARIABLE] = "1"
    if "ir" in kinds or "graphs" in kinds:
        environment["TORCHINDUCTOR_FX_GRAPH_CACHE"] = "0"  # what is cached goes through no stage
    collectors = ("trace", *(("debug",) if kinds else ()), *(("logs",) if log_levels else ()))
    # The watch keeps a record of each graph, of which scripts are made, and lets none come out of AOTAutograd's cache.
    with observed_run(program, collectors, watches_failures=bool(kinds), environment=environment) as run:
        trace = trace_of(run.events, only_known=program.only is not None)
        index = write_debug_folder(run, program, kinds, trace)
        files: dict[tuple[int, str, int], list[str]] = {}
        for each in index["files"]:
            files.setdefault((each["pid"], each["graph"], each["again"]), []).append(
                f"{DEBUG}/{each['file']}"
            )
        for frame in trace.frames:
            frame.artefacts = tuple(files.get((frame.pid, frame.graph, frame.again), ()))
        document = {**run.facts(), **trace.to_json()}
        stages = (f"{DEBUG}/index.md",) if kinds else ()
        page = write_run(run.folder, shlex.join(program.line[1:]), run.facts(), {"trace": trace}, stages)
        if not trace.frames:
            say_no_graph(program, run)
        if program.as_json:
            print_json({**document, "debug": index})
        elif trace.frames:
            show("\n".join(trace_lines(trace)), lines=True)
            at_stages = f"; graphs at every stage: {run.folder / stages[0]}" if stages else ""
            say(f"page: {page}{at_stages}")
    return run.status


# Stage -> (ending of the file, what it is); in the order of the compile. `{}` is forward, backward or inference.
_STAGES = {
    "bytecode": ("txt", "the frame's bytecode"),
    "captured": ("py", "the graph as Dynamo captured it, readable"),
    "captured-runnable": ("py", "the same, as a script that runs by itself"),
    "captured-diagram": ("svg", "the same, as a drawing"),
    "joint": ("py", "forward and backward as one graph"),
    "{}-graph": ("py", "the {} graph after AOTAutograd, readable"),
    "{}-runnable": ("py", "the {} graph, as a script that runs by itself"),
    "{}-diagram": ("svg", "the {} graph, as a drawing"),
    "{}-transformed": ("py", "the {} graph after Inductor's passes"),
    "{}-ir-before-fusion": ("txt", "its loops before they are fused"),
    "{}-ir-after-fusion": ("txt", "its loops after they were fused"),
    "{}-code": ("py", "the code that was generated"),
    "{}-compile-profile": ("txt", "where Python spent the time while it was compiled"),
    "new-bytecode": ("txt", "the bytecode that runs instead"),
}
DIRECTIONS = ("inference", "forward", "backward")
_ORDER = [
    name.format(direction)
    for position, direction in enumerate(DIRECTIONS)
    for name in _STAGES
    if "{}" in name or position == 0
]


# Process, torch's id of the compile, how often that id was used before.
Compile = tuple[int, str, int]


@dataclass(frozen=True)
class Artefact:
    """One file of the debug folder. `stage` is a name of `stage_of`; `text` what is in it."""

    compile: Compile
    stage: str
    text: str

    @property
    def graph(self) -> str:
        return self.compile[1]


def stage_of(what: str, direction: str | None) -> str:
    """The stage of something a collector kept while a graph of that direction was in Inductor's hands.

    >>> stage_of("code", "backward"), stage_of("captured", None), stage_of("forward-graph", None)
    ('backward-code', 'captured', 'forward-graph')
    """
    return f"{direction or 'forward'}-{what}" if f"{{}}-{what}" in _STAGES else what


def about(stage: str) -> tuple[str, str]:
    """(ending, description) of a stage.

    >>> about("backward-code")
    ('py', 'the code that was generated')
    """
    direction = next((each for each in DIRECTIONS if stage.startswith(f"{each}-")), None)
    name = stage if direction is None else "{}" + stage.removeprefix(direction)
    ending, words = _STAGES.get(name, ("txt", stage))
    return ending, words.format(direction)


@dataclass(frozen=True)
class Placed:
    """An artefact and where it goes: `folder/name`."""

    folder: str
    name: str
    artefact: Artefact

    @property
    def path(self) -> str:
        return f"{self.folder}/{self.name}"


def placed(artefacts: Iterable[Artefact], functions: Mapping[Compile, str]) -> list[Placed]:
    """Numbered names, a folder for each compile; `functions` says which function each was for."""
    groups: dict[Compile, list[Artefact]] = {}
    for each in artefacts:
        groups.setdefault(each.compile, []).append(each)
    several = len({pid for pid, _, _ in groups}) > 1
    found = []
    for (pid, graph, again), members in groups.items():
        function = re.sub(r"[^\w.]+", "_", functions.get((pid, graph, again), ""))[:60].strip("._")
        words = [graph.replace("/", "_").replace("!", "a"), function, f"reset{again}" if again else ""]
        words.append(f"process{pid}" if several else "")
        folder = "-".join(word for word in words if word)
        ranked = sorted(members, key=lambda each: _rank(each.stage))
        found += [
            Placed(folder, f"{number:02d}-{each.stage}.{about(each.stage)[0]}", each)
            for number, each in enumerate(ranked, 1)
        ]
    return found


def _rank(stage: str) -> int:
    # The bytecode that runs in the end comes after everything.
    if stage == "new-bytecode" or stage not in _ORDER:
        return len(_ORDER)
    return _ORDER.index(stage)


def index_markdown(
    title: str, files: Sequence[Placed], functions: Mapping[Compile, str], notes: Sequence[str]
) -> str:
    """The index of the folder, for a person."""
    lines = [f"# {title}", ""]
    if not files:
        lines += ["Nothing was compiled, or nothing was asked for.", ""]
    folders = dict.fromkeys(each.folder for each in files)
    for folder in folders:
        members = [each for each in files if each.folder == folder]
        first = members[0].artefact
        function = functions.get(first.compile, "")
        lines += [f"## {first.graph} {_plain(function)}".rstrip(), "", "| file | what it is |", "|---|---|"]
        lines += [f"| [{each.name}]({each.path}) | {about(each.artefact.stage)[1]} |" for each in members]
        lines.append("")
    return "\n".join([*lines, *(f"- {note}" for note in notes), ""])


def _plain(text: str) -> str:
    return "".join(char if char.isalnum() or char in "._ " else " " for char in text)


def write_debug_folder(
    run: ObservedRun, program: ProgramToObserve, kinds: Collection[str], trace: Trace
) -> dict[str, Any]:
    """Everything of these kinds that belongs to a trace, with index.md and index.json; returns the latter."""
    cases_dir = program.cases_dir
    functions = {(frame.pid, frame.graph, frame.again): frame.function for frame in trace.frames}
    artefacts, notes = _collected(run)
    stores: dict[Compile, list[Path]] = {}
    for compile, folder, record in _records(run):
        made, why = _of_record(compile, folder, record, kinds)
        artefacts += made
        notes += [why] if why else []
        if made and (folder / "inputs").is_dir():
            stores.setdefault(compile, []).append(folder / "inputs")
    if program.only is not None:
        artefacts = [each for each in artefacts if each.compile in functions]
    files = placed(artefacts, functions)
    for each in files:
        folder = run_folder(cases_dir, f"{run.id}/{DEBUG}/{each.folder}")
        write_result(folder, each.name, each.artefact.text)
        for store in stores.pop(each.artefact.compile, ()):
            # By the hash of what is in them: those of several graphs go together.
            shutil.copytree(store, folder / "inputs", dirs_exist_ok=True)
    notes += [f"`../{path.name}`: {_LOGS[path.name.partition('-')[0]]}" for path in run.keep_logs()]
    folder = run_folder(cases_dir, f"{run.id}/{DEBUG}")
    index = _index(run, files, functions, notes)
    write_result(folder, "index.json", index)
    write_result(folder, "index.md", index_markdown(f"Graphs of run {run.id}", files, functions, notes))
    return index


def _index(
    run: ObservedRun, files: Sequence[Placed], functions: Mapping[Compile, str], notes: Sequence[str]
) -> dict[str, Any]:
    listed = [
        {
            "file": each.path,
            "graph": each.artefact.graph,
            "pid": each.artefact.compile[0],
            "again": each.artefact.compile[2],
            "function": functions.get(each.artefact.compile),
            "stage": each.artefact.stage,
            "about": about(each.artefact.stage)[1],
        }
        for each in files
    ]
    return {"run": run.id, "files": listed, "notes": list(notes)}


def _collected(run: ObservedRun) -> tuple[list[Artefact], list[str]]:
    """The texts that collectors left; of a frame that was started again, those of the last attempt."""
    latest: dict[tuple[Compile, str, int], Artefact] = {}
    notes: list[str] = []
    seen: Counter[tuple[Compile, str, Any]] = Counter()
    ids = ReusedIds()
    for event in run.events:
        ids.see(event)
        given = event.fields
        if event.kind not in ("artefact", "artefact_left_out"):
            continue
        graph, direction = str(given.get("graph")), given.get("direction")
        stage = stage_of(str(given.get("what")), direction if isinstance(direction, str) else None)
        compile = (event.pid, graph, ids.again(event.pid, graph))
        if event.kind == "artefact_left_out":
            notes.append(f"{stage} of {graph} is left out: {given.get('bytes')} characters are too many")
            continue
        try:
            text = text_inside(run.spool, str(given.get("file")), MOST_TEXT)
        except NotRead as why:
            notes.append(f"{stage} of {graph} could not be read ({why})")
            continue
        # Several graphs of one compile and direction are parts of it; several attempts replace each other.
        key = (compile, stage, given.get("attempt"))
        seen[key] += 1
        latest[compile, stage, seen[key]] = Artefact(compile, stage, text)
    return list(latest.values()), notes


def _records(run: ObservedRun) -> Iterator[tuple[Compile, Path, GraphRecord]]:
    """The recorded graphs of a run, each with the compile it was part of."""
    for process in watched_processes(run.spool):
        compiles: dict[int, Compile] = {}
        used: Counter[str] = Counter()
        for folder in process.graph_folders():
            try:
                record = read_record(folder / "record.json")
            except ValueError:
                continue
            name = record.compile_id or "none"
            if record.settings.level == "dynamo":
                compiles[record.number] = (process.pid, name, used[name])
                used[name] += 1
            yield compiles.get(record.outer or record.number, (process.pid, name, 0)), folder, record


def _of_record(
    compile: Compile, folder: Path, record: GraphRecord, kinds: Collection[str]
) -> tuple[list[Artefact], str | None]:
    """The script and the drawing of one recorded graph; why there is no script."""
    try:
        graph = text_inside(folder, "graph.py")
    except NotRead:
        return [], None
    before = "captured" if record.settings.level == "dynamo" else _direction(record)
    made: list[Artefact] = []
    if "runnable" in kinds and record.no_repro is None:
        name = f"{before}-runnable"
        text = script_text(record, graph, None, inputs=record.inputs, name=f"{name}.py", pasted=True)
        made.append(Artefact(compile, name, text))
    if "diagram" in kinds:
        from torchsleuth.front.report.html import graph_svg

        with contextlib.suppress(NotAGraph, TooLarge):
            drawing = graph_svg(draw(read_graph(graph), MOST_IN_A_FILE, named=True))
            made.append(Artefact(compile, f"{before}-diagram", drawing))
    why = f"{compile[1]} {before} has no runnable script: {record.no_repro}" if record.no_repro else None
    return made, why if "runnable" in kinds else None


def _direction(record: GraphRecord) -> str:
    return "inference" if record.settings.compile_kwargs.get("is_inference") else record.settings.direction
