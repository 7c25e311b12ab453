"""`--log PART=LEVEL`: what parts of the compiler log, on stderr and in a file that is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from torchsleuth.core.watching import LOG_VARIABLE

PARTS = ("dynamo", "aot", "inductor", "dynamic", "distributed")
# As TORCH_LOGS says it: summarised steps, or every instruction.
LEVELS = {"info": "", "debug": "+"}


def _checked(_ctx: click.Context, _parameter: click.Parameter, given: Sequence[str]) -> dict[str, str]:
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


log_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--log",
    "log_levels",
    multiple=True,
    callback=_checked,
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
