"""What to say where a program ran and no graph was compiled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torchsleuth.cli.output import say
from torchsleuth.explain.compile_places import compile_places


def say_nothing_compiled(line: Sequence[str]) -> None:
    """Says so, why that may be, and where torch.compile would go in the script of this command line."""
    say(
        "nothing was compiled: no function or module of the program's own went through torch.compile. "
        "(torch compiles nothing for `.compile()` on a module of torch.nn itself, such as nn.Sequential: "
        "compile a function or module of yours that calls it)"
    )
    script = next((Path(word) for word in line[1:2] if word.endswith(".py")), None)
    for place in compile_places(script) if script is not None else ():
        say(f"torch.compile could go here: {place}")
