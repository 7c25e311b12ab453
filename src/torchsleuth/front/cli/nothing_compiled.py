"""What to say where a program ran and no graph was compiled."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from torchsleuth.front.cli.observed import ObservedRun, ProgramToObserve
from torchsleuth.front.cli.output import say
from torchsleuth.front.observe.compile_places import compile_places
from torchsleuth.front.observe.events import Event, failed_compiles


def say_no_graph(program: ProgramToObserve, run: ObservedRun) -> None:
    """Says that this run has no graph to tell of, and why; compiles that failed were told before."""
    if program.only is not None:
        say(f"no function called {program.only} was compiled; without --only all that are compiled are told")
    elif failed_compiles(run.events):
        say("no other graph was compiled")
    elif stopped := capture_stopped(run.events):
        names = ", ".join(f"`{name}`" for name in stopped[:3])
        say(
            f"no graph came of {names}: `torchsleuth explain {shlex.join(program.line[1:])}` shows where capture stops"
        )
    else:
        say_nothing_compiled(program.line)


def capture_stopped(events: Iterable[Event]) -> tuple[str, ...]:
    """The functions whose capture was given up, each once; one without tensors is skipped, not given up.

    >>> [broke, skipped] = [{"function": "f", "outcome": "Unsupported"}, {"function": "g", "outcome": "skipped"}]
    >>> capture_stopped([Event("frame", 0.0, 7, broke), Event("frame", 1.0, 7, skipped)])
    ('f',)
    """
    given_up = (
        e for e in events if e.kind == "frame" and e.fields.get("outcome") not in ("compiled", "skipped")
    )
    return tuple(dict.fromkeys(str(event.fields.get("function")) for event in given_up))


def say_nothing_compiled(line: Sequence[str]) -> None:
    """Says so, why that may be, and where torch.compile would go in the script of this command line."""
    say(
        "nothing was compiled: torch.compile was given no function or module of the program's own that works on "
        "tensors. (torch compiles nothing for `.compile()` on a module of torch.nn itself, such as nn.Sequential: "
        "compile a function or module of yours that calls it)"
    )
    script = next((Path(word) for word in line[1:2] if word.endswith(".py")), None)
    for place in compile_places(script) if script is not None else ():
        say(f"torch.compile could go here: {place}")
