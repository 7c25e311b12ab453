"""The program that a person names after our own options: `script.py ARGS`, `-m module ARGS`, `-- launcher …`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.front.supervise.program import resolve_command

# Where the program's standard output goes while ours is one JSON document.
STDERR = 2


class NoSuchProgram(SleuthError):
    """There is nothing to run under that name."""

    def __init__(self, word: str) -> None:
        super().__init__(
            f"there is no script {word!r} here and no command of that name; "
            "give a Python file, `-m module`, or `-- launcher …`"
        )


class ProgramCommand(click.Command):
    """Ends our own options after `-m MODULE`, as Python does: what follows belongs to the program."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["context_settings"] = {
            "allow_interspersed_args": False,
            **(kwargs.get("context_settings") or {}),
        }
        super().__init__(*args, **kwargs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with_value = {o for p in self.params if not getattr(p, "is_flag", False) for o in p.opts}
        position = 0
        while position < len(args) and args[position].startswith("-") and args[position] != "--":
            if args[position] == "-m":
                args = [*args[: position + 2], "--", *args[position + 2 :]]
                break
            position += 2 if args[position] in with_value else 1
        return super().parse_args(ctx, args)


module_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "-m", "module", metavar="MODULE", help="Run a module as a script, like `python -m`."
)


def program_line(module: str | None, command: Sequence[str]) -> list[str]:
    """The command line to start; raises where there is none: `program_line(None, ["train.py", "--epochs", "1"])`."""
    if not command and module is None:
        raise click.UsageError("say what to run: a script, or -m MODULE")
    line = resolve_command(module, command)
    if line is None:
        raise NoSuchProgram(command[0])
    return line
