"""`trace`: the capture from inside, and every graph at every stage."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from torchsleuth.core.watching import ARTEFACTS_VARIABLE, INSTRUCTIONS_VARIABLE
from torchsleuth.front.cli.debug_folder import DEBUG, write_debug_folder
from torchsleuth.front.cli.observed import ProgramToObserve, observed_run, program_to_observe, say_no_graph
from torchsleuth.front.cli.options import ProgramCommand, log_environment, log_option
from torchsleuth.front.cli.output import print_json, say, show
from torchsleuth.front.observe.trace import trace_lines, trace_of, trace_page

# What the debug folder can hold; the last two only on request.
KINDS = ("graphs", "runnable", "bytecode", "ir", "code", "torch-trace", "diagram", "profile")
USUAL = KINDS[:-2]


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
    gets trace.json, trace.html (searchable) and debug/ with numbered files and an index.

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
        run.keep("trace.json", document)
        run.keep("trace.html", trace_page(f"trace of {' '.join(program.line[1:])}", trace))
        if not trace.frames:
            say_no_graph(program, run)
        if program.as_json:
            print_json({**document, "debug": index})
        elif trace.frames:
            show("\n".join(trace_lines(trace)), lines=True)
            stages = f"; graphs at every stage: {run.folder / DEBUG / 'index.md'}" if kinds else ""
            say(f"open {run.folder / 'trace.html'}{stages}")
    return run.status
