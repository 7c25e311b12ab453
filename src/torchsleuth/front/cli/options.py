"""Options that several verbs share, so that they mean and read the same everywhere.

And the program that a person names after them: `script.py ARGS`, `-m module ARGS`, `-- launcher …`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import click

from torchsleuth.core.cases.errors import SleuthError, error_of_oserror
from torchsleuth.core.protocol.files import write_whole
from torchsleuth.core.watching import LOG_VARIABLE
from torchsleuth.front.cli.output import say

Function = TypeVar("Function", bound=Callable[..., object])

DEFAULT_CASES = "torchsleuth-cases"


cases_option: Callable[[Function], Function] = click.option(
    "--cases",
    "cases_dir",
    envvar="TORCHSLEUTH_CASES",
    default=DEFAULT_CASES,
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder of the cases.",
)
json_option: Callable[[Function], Function] = click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else."
)


def _workers(_ctx: click.Context, _parameter: click.Parameter, wanted: str) -> str:
    """Checked here, before a process is started for it."""
    on_ray = wanted == "ray" or wanted.startswith("ray://")
    if not on_ray and (not wanted.isdecimal() or int(wanted) < 1):
        raise click.BadParameter(f"{wanted!r}; it must be a number from 1 on, `ray`, or `ray://host:port`.")
    if on_ray and importlib.util.find_spec("ray") is None:
        raise click.BadParameter(
            "Ray is not installed here: pip install 'torchsleuth[ray]', or use a number."
        )
    if wanted.startswith("ray://"):
        say(
            f"trials run on the Ray cluster at {wanted}: its nodes get graph and kept values of the case and execute "
            "it, and whoever reaches its ports can do anything there; name only a cluster that you trust"
        )
    return wanted


workers_option: Callable[[Function], Function] = click.option(
    "--workers",
    default="2",
    show_default=True,
    envvar="TORCHSLEUTH_WORKERS",
    metavar="N|ray|ray://…",
    callback=_workers,
    help="Trials at a time while a case is made smaller: local processes, or a Ray cluster.",
)


def seconds_option(
    name: str,
    about: str,
    *,
    default: float | None = None,
    least: float | None = None,
    envvar: str | None = None,
) -> Callable[[Function], Function]:
    """`--timeout S` and its kind: seconds from `least` on, or more than none."""
    return click.option(
        name,
        type=click.FloatRange(min=least or 0, min_open=least is None),
        default=default,
        show_default=default is not None,
        metavar="S",
        envvar=envvar,
        help=about,
    )


def budget_option(
    seconds: float, about: str = "Seconds to spend.", *, least: float = 1, envvar: str | None = None
) -> Callable[[Function], Function]:
    """`--budget S`, with the seconds a verb takes by default."""
    return seconds_option("--budget", about, default=seconds, least=least, envvar=envvar)


def path_option(
    *names: str, about: str, folder: bool = False, default: str | None = None
) -> Callable[[Function], Function]:
    """`--out FILE`, or `--out DIR` for a `folder`."""
    return click.option(
        *names,
        type=click.Path(file_okay=not folder, dir_okay=folder, path_type=Path),
        default=default,
        show_default=default is not None,
        metavar="DIR" if folder else "FILE",
        help=about,
    )


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

    allow_interspersed_args = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with_value = {o for p in self.params if not getattr(p, "is_flag", False) for o in p.opts}
        position = 0
        while position < len(args) and args[position].startswith("-") and args[position] != "--":
            if args[position] == "-m":
                args = [*args[: position + 2], "--", *args[position + 2 :]]
                break
            position += 2 if args[position] in with_value else 1
        return super().parse_args(ctx, args)


module_option: Callable[[Function], Function] = click.option(
    "-m", "module", metavar="MODULE", help="Run a module as a script, like `python -m`."
)


def program_line(module: str | None, command: Sequence[str], cases_dir: Path) -> list[str]:
    """The command line to start; raises where there is none: `program_line(None, ["train.py"], Path("cases"))`.

    A program on standard input is kept beside the cases first: whoever runs it again needs it, and so do its lines.
    """
    if not command and module is None:
        raise click.UsageError("say what to run: a script, `-` for standard input, or -m MODULE")
    if module is None and command[0] == "-":
        command = [_from_stdin(cases_dir), *command[1:]]
    line = resolve_command(module, command)
    if line is None:
        raise NoSuchProgram(command[0])
    return line


def resolve_command(module: str | None, words: Sequence[str]) -> list[str] | None:
    """The command line to run: a script by this Python, `-m module`, or a launcher as it stands."""
    import shutil

    if module is not None:
        return [sys.executable, "-m", module, *words]
    first = Path(words[0])
    if first.suffix == ".py" or (first.is_file() and not os.access(first, os.X_OK)):
        return [sys.executable, *words] if first.is_file() else None
    if first.is_dir() and (first / "__main__.py").is_file():
        return [sys.executable, *words]
    if shutil.which(words[0]):
        return list(words)
    beside = Path(sys.executable).parent / words[0]  # torchrun of an environment that nobody activated
    return [str(beside), *words[1:]] if os.access(beside, os.X_OK) and beside.is_file() else None


def _from_stdin(cases_dir: Path) -> str:
    text = sys.stdin.buffer.read()
    if not text.strip():
        raise click.UsageError("there is no program on standard input")
    path = cases_dir / "programs" / f"{hashlib.sha256(text).hexdigest()[:8]}.py"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, text.decode("utf-8", "replace"))
    except OSError as error:
        raise error_of_oserror(path.parent, error) from error
    return str(path)


PARTS = ("dynamo", "aot", "inductor", "dynamic", "distributed")
# As TORCH_LOGS says it: summarised steps, or every instruction.
LEVELS = {"info": "", "debug": "+"}


def _checked_levels(_ctx: click.Context, _parameter: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    levels: dict[str, str] = {}
    for word in (each for words in given for each in words.split(",") if each):
        part, _, level = word.partition("=")
        level = level or "info"
        if part not in PARTS or level not in LEVELS:
            raise click.BadParameter(
                f"{word!r}; it must be PART=LEVEL with a part of {', '.join(PARTS)} and the level info or debug."
            )
        levels[part] = level
    return levels


log_option: Callable[[Function], Function] = click.option(
    "--log",
    "log_levels",
    multiple=True,
    callback=_checked_levels,
    metavar="PART=LEVEL",
    envvar="TORCHSLEUTH_LOG_LEVELS",
    help=f"What a part of the compiler ({', '.join(PARTS)}) logs at level info or debug: on stderr, and kept.",
)


def log_environment(levels: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """What the program's environment gets for that, beside what the person has in TORCH_LOGS.

    >>> log_environment({"dynamo": "debug", "aot": "info"}, {"TORCH_LOGS": "graph_breaks"})
    {'TORCH_LOGS': 'graph_breaks,+dynamo,aot', 'TORCHSLEUTH_LOG': 'dynamo,aot'}
    """
    if not levels:
        return {}
    own = [environment["TORCH_LOGS"]] if environment.get("TORCH_LOGS") else []
    wanted = [LEVELS[level] + part for part, level in levels.items()]
    return {"TORCH_LOGS": ",".join([*own, *wanted]), LOG_VARIABLE: ",".join(levels)}
