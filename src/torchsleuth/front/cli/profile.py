"""`profile`: where the compile time of a program goes."""

from __future__ import annotations

import click

from torchsleuth.front.cli.nothing_compiled import say_no_graph
from torchsleuth.front.cli.observed import ProgramToObserve, observed_run, program_to_observe
from torchsleuth.front.cli.output import print_json, say, show
from torchsleuth.front.cli.program_line import ProgramCommand
from torchsleuth.front.observe.profile import profile_of
from torchsleuth.front.observe.profile_text import profile_files, profile_lines


@click.command("profile", cls=ProgramCommand)
@program_to_observe
def profile_verb(program: ProgramToObserve) -> int:
    """Where the compile time of a program goes: by phase, by function and by graph.

    The program runs as it does without torchsleuth, its caches included. Beside the table, the run's folder gets
    times.json, times.csv, profile.svg, and profile-trace.json for https://ui.perfetto.dev.

    \b
    torchsleuth profile train.py --epochs 1
    torchsleuth profile --for 120 train.py
    """
    with observed_run(program, ("times",)) as run:
        profile = profile_of(run.events, only_known=program.only is not None)
        files = {"times.json": {**run.facts(), **profile.to_json()}, **profile_files(profile)}
        for name, result in files.items():
            run.keep(name, result)
        if not profile.steps:
            say_no_graph(program, run)
        if program.as_json:
            print_json({**files["times.json"], "files": list(files)})
        elif profile.steps:
            show("\n".join(profile_lines(profile)), lines=True)
            say(f"kept in {run.folder}: {', '.join(files)}")
    return run.status
