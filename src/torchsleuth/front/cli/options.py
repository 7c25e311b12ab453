"""Options that several verbs share, so that they mean and read the same everywhere."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from torchsleuth.front.cli.output import say

Function = TypeVar("Function", bound=Callable[..., Any])

DEFAULT_CASES = "torchsleuth-cases"


def cases_option(function: Function) -> Function:
    """`--cases DIR`, or $TORCHSLEUTH_CASES, or ./torchsleuth-cases."""
    return click.option(
        "--cases",
        "cases_dir",
        envvar="TORCHSLEUTH_CASES",
        default=DEFAULT_CASES,
        show_default=True,
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Folder of the cases.",
    )(function)


def json_option(function: Function) -> Function:
    """`--json`: one document on stdout and nothing else there."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")(
        function
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


def workers_option(function: Function) -> Function:
    """`--workers N`, `ray` or `ray://host`: how many trials run at a time, and where."""
    return click.option(
        "--workers",
        default="2",
        show_default=True,
        envvar="TORCHSLEUTH_WORKERS",
        metavar="N|ray|ray://…",
        callback=_workers,
        help="Trials at a time while a case is made smaller: local processes, or a Ray cluster.",
    )(function)


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
