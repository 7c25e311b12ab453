"""`explain`: where a program's graphs break, why, what that costs and what to write instead."""

from __future__ import annotations

import os

import click

from torchsleuth.core.changes import Change
from torchsleuth.front.cli.nothing_compiled import say_no_graph
from torchsleuth.front.cli.observed import ProgramToObserve, observed_run, program_to_observe
from torchsleuth.front.cli.output import print_json, say, show
from torchsleuth.front.cli.program_line import ProgramCommand
from torchsleuth.front.observe.breaks import break_lines, breaks_of


@click.command("explain", cls=ProgramCommand)
@click.option(
    "--fullgraph", is_flag=True, help="Have the program stop at its first graph break, as by fullgraph=True."
)
@program_to_observe
def explain_verb(program: ProgramToObserve, fullgraph: bool) -> int:
    """Where the graphs of a program break, the dearest break first: line, reason, fix, and what it would gain.

    The program runs as it does without torchsleuth and its exit status is passed on.

    \b
    torchsleuth explain train.py --epochs 1
    torchsleuth explain --for 60 -m mypackage.train
    torchsleuth explain --fullgraph infer.py
    """
    with observed_run(program, ("breaks",), change=Change(fullgraph=fullgraph)) as run:
        found = breaks_of(run.events)
        document = {**run.facts(), **found.to_json()}
        run.keep("breaks.json", document)
        if not found.breaks and not found.graphs:
            say_no_graph(program, run)
        if program.as_json:
            print_json(document)
        elif found.breaks or found.graphs:
            for line in break_lines(found, shorter):
                show(line)
        say(f"all of it is in {shorter(str(run.folder / 'breaks.json'))}")
    return run.status


def shorter(path: str) -> str:
    """A path as a person would type it in this folder: `shorter("/home/me/model.py")`."""
    near = os.path.relpath(path)
    return near if len(near) < len(path) and not near.startswith("../..") else path
