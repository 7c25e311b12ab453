"""`explain`, `recompiles`, `profile`: a run of a program, looked at.

Where its graphs break and what to write instead; what is compiled again, which guards say no and what cures it; where
the compile time goes.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable

import click

from torchsleuth.core.changes import NOTHING, Change
from torchsleuth.front.cli.observed import (
    ObservedRun,
    ProgramToObserve,
    observed_run,
    program_to_observe,
    say_no_graph,
)
from torchsleuth.front.cli.options import Function, ProgramCommand, budget_option
from torchsleuth.front.cli.output import print_json, say, show
from torchsleuth.front.observe.breaks import Breaks, break_lines, breaks_of
from torchsleuth.front.observe.profile import (
    CudaGraphs,
    Profile,
    cuda_graph_lines,
    cuda_graphs_of,
    profile_of,
)
from torchsleuth.front.observe.profile_text import profile_lines
from torchsleuth.front.observe.recompiles import Recompiles, recompile_lines, recompiles_of
from torchsleuth.front.report.pages import shorter, write_run
from torchsleuth.front.supervise.cures import TryOut, with_tried_cures, with_tried_lines, with_tried_region


def try_options(function: Function) -> Function:
    """`--no-try` and `--budget`, of the verbs that run the program again."""
    none = click.option("--no-try", is_flag=True, help="Run the program only once, and try no fixes.")
    budget = budget_option(
        120, "Seconds for trying fixes; a program that takes longer is not run again.", least=0
    )
    return none(budget(function))


def _try_out(
    program: ProgramToObserve, run: ObservedRun, change: Change, no_try: bool, budget: float
) -> TryOut | None:
    """How to run the program again; None where it is not to be, or cannot in that time, which is said."""
    if no_try or run.program_status != 0 or run.late:
        return None
    if run.seconds > budget:
        say(f"nothing is tried: the program took {run.seconds:.0f} s, and --budget is {budget:.0f}")
        return None
    base, deadline = program.changed(change), time.monotonic() + budget
    return TryOut(program.line, program.cases_dir, base, deadline, say)


@click.command("explain", cls=ProgramCommand)
@try_options
@click.option(
    "--fullgraph", is_flag=True, help="Stop the program at its first graph break, as fullgraph=True does."
)
@program_to_observe
def explain_verb(program: ProgramToObserve, fullgraph: bool, no_try: bool, budget: float) -> int:
    """Where the graphs of a program break, the most expensive break first: line, reason, fix, and what it would gain.

    Lines that can be pasted are tried: the program runs again, unseen, with them. Its exit status is passed on.

    \b
    torchsleuth explain train.py --epochs 1
    torchsleuth explain --for 60 -m mypackage.train
    torchsleuth explain --fullgraph infer.py
    """
    with observed_run(program, ("breaks", "cudagraphs"), change=Change(fullgraph=fullgraph)) as run:
        found, cuda_graphs = breaks_of(run.events), cuda_graphs_of(run.events)
        seen = bool(found.breaks or found.graphs)
        change = Change(fullgraph=fullgraph)
        if any(each.reason.paste for each in found.breaks) and (
            again := _try_out(program, run, change, no_try, budget)
        ):
            found = with_tried_lines(found, again)
        lines = break_lines(found, shorter) if seen else ()
        _tell(program, run, "breaks", found, lines, no_graph=not seen, cuda_graphs=cuda_graphs)
    return run.status


def _tell(
    program: ProgramToObserve,
    run: ObservedRun,
    name: str,
    found: Breaks | Recompiles | Profile,
    lines: Iterable[str],
    *,
    no_graph: bool,
    cuda_graphs: CudaGraphs | None = None,
) -> None:
    """Keeps what was found in the run's folder, and shows it as the person asked for it."""
    more = {} if cuda_graphs is None else cuda_graphs.to_json()
    page = write_run(run.folder, shlex.join(program.line[1:]), run.facts(), {name: found})
    if no_graph:
        say_no_graph(program, run)
    if program.as_json:
        print_json({**run.facts(), **found.to_json(), **more})
    else:
        for line in (*lines, *(cuda_graph_lines(cuda_graphs) if cuda_graphs else ())):
            show(line)
    if not no_graph:
        say(f"page: {shorter(str(page))}")


@click.command("recompiles", cls=ProgramCommand)
@try_options
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
        if found.count and (again := _try_out(program, run, NOTHING, no_try, budget)):
            found = with_tried_cures(found, again)
        lines = recompile_lines(found, shorter) if found.compiles else ()
        no_graph = not found.compiles and not found.functions
        _tell(program, run, "recompiles", found, lines, no_graph=no_graph)
    return run.status


@click.command("profile", cls=ProgramCommand)
@try_options
@program_to_observe
def profile_verb(program: ProgramToObserve, no_try: bool, budget: float) -> int:
    """Where the compile time of a program goes: by phase, by function and by graph.

    The program runs as it does without torchsleuth, its caches included. A loop that capture unrolled is named, and
    what compiling its body once brings is tried in two more runs. Beside the table, the run's folder gets times.json,
    times.csv, profile.svg, and profile-trace.json for https://ui.perfetto.dev.

    \b
    torchsleuth profile train.py --epochs 1
    torchsleuth profile --for 120 train.py
    """
    with observed_run(program, ("times", "loops", "cudagraphs")) as run:
        profile = profile_of(run.events, only_known=program.only is not None)
        if profile.loop is not None and (again := _try_out(program, run, NOTHING, no_try, budget)):
            profile = with_tried_region(profile, again)
        lines = profile_lines(profile) if profile.steps else ()
        cuda_graphs = cuda_graphs_of(run.events)
        _tell(program, run, "times", profile, lines, no_graph=not profile.steps, cuda_graphs=cuda_graphs)
    return run.status
