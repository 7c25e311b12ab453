"""What to say where a program ran and no graph was compiled."""

from __future__ import annotations

from pathlib import Path

from torchsleuth.cli.observed import ObservedRun, ProgramToObserve
from torchsleuth.cli.output import say
from torchsleuth.explain.compile_places import compile_places
from torchsleuth.explain.failed_compiles import failed_compiles


def say_nothing_compiled(program: ProgramToObserve, run: ObservedRun) -> None:
    """Says so and why that may be, and where torch.compile would go in the script; failed compiles were told before."""
    if program.only is not None:
        say(f"no function called {program.only} was compiled; without --only all that are compiled are told")
        return
    if failed_compiles(run.events):
        say("no other graph was compiled")
        return
    say(
        "nothing was compiled: torch.compile was given no function or module of the program's own that works on "
        "tensors. (torch compiles nothing for `.compile()` on a module of torch.nn itself, such as nn.Sequential: "
        "compile a function or module of yours that calls it)"
    )
    script = next((Path(word) for word in program.line[1:2] if word.endswith(".py")), None)
    for place in compile_places(script) if script is not None else ():
        say(f"torch.compile could go here: {place}")
