"""`recompiles`: which functions are compiled again and again, which guards say no, and what cures it."""

from __future__ import annotations

import time

import click

from torchsleuth.core.changes import NOTHING
from torchsleuth.front.cli.explain import shorter
from torchsleuth.front.cli.nothing_compiled import say_no_graph
from torchsleuth.front.cli.observed import ProgramToObserve, observed_run, program_to_observe
from torchsleuth.front.cli.options import budget_option
from torchsleuth.front.cli.output import print_json, say, show
from torchsleuth.front.cli.program_line import ProgramCommand
from torchsleuth.front.observe.recompiles import recompile_lines, recompiles_of
from torchsleuth.front.supervise.cures import with_tried_cures


@click.command("recompiles", cls=ProgramCommand)
@click.option(
    "--no-try",
    is_flag=True,
    help="Run the program once; else it is run again with each cure that can be tried.",
)
@budget_option(120, "Seconds for trying cures; a program that takes longer is not run again.", least=0)
@program_to_observe
def recompiles_verb(program: ProgramToObserve, no_try: bool, budget: float) -> int:
    """Every recompilation: the guards that failed with expected and actual value, the cause, the seconds, the cure.

    Cures that need no change of the program's text are tried: the program runs again, unseen, with the change in
    place. Its exit status is passed on.

    \b
    torchsleuth recompiles train.py --epochs 1
    torchsleuth recompiles --no-try --only forward serve.py
    """
    with observed_run(program, ("recompiles",)) as run:
        found = recompiles_of(run.events)
        if found.count and not no_try and run.program_status == 0 and not run.late:
            if run.seconds > budget:
                say(f"no cure is tried: the program took {run.seconds:.0f} s, and --budget is {budget:.0f}")
            else:
                found = with_tried_cures(
                    found,
                    program.line,
                    program.cases_dir,
                    base=program.changed(NOTHING),
                    deadline=time.monotonic() + budget,
                    note=say,
                )
        document = {**run.facts(), **found.to_json()}
        run.keep("recompiles.json", document)
        if not found.compiles and not found.functions:
            say_no_graph(program, run)
        if program.as_json:
            print_json(document)
        elif found.compiles:
            for line in recompile_lines(found, shorter):
                show(line)
        say(f"all of it is in {shorter(str(run.folder / 'recompiles.json'))}")
    return run.status
