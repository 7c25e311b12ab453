"""`calibrate`: how far healthy compiled results lie from the truth on this machine, so that verdicts can go by it.

The graphs are compiled and run by a process of their own, which may crash; here is only what is shown of it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import click

from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.processes.tree import kill_group
from torchsleuth.front.cli.options import json_option
from torchsleuth.front.cli.output import print_json, show, status

_MEASURE = ("-P", "-m", "torchsleuth.torch_core.compare.verdict.calibrate")


class NotMeasured(SleuthError):
    """The process that compiles the healthy graphs did not come to its end."""


@click.command("calibrate")
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda.")
@click.option(
    "--graphs", type=click.IntRange(1), default=20, show_default=True, help="Healthy graphs per dtype."
)
@click.option("--dry-run", is_flag=True, help="Measure and show, but keep nothing.")
@json_option
def calibrate_verb(device: str, graphs: int, dry_run: bool, as_json: bool) -> int:
    """Measure false alarms and rounding noise over healthy graphs, compiled on this machine.

    The numbers are kept in your cache folder, and every later verdict (`run --check-accuracy`) goes by them. Ctrl-C
    ends it and keeps nothing. A graph takes some seconds to compile.

    \b
    torchsleuth calibrate
    torchsleuth calibrate --device cuda --graphs 60
    """
    started = time.monotonic()

    def tell(done: int, total: int) -> None:
        left = (time.monotonic() - started) / done * (total - done)
        status(f"torchsleuth: {done} of {total} graphs, about {left:.0f} s left")

    found = _measured([*_MEASURE, device, str(graphs), "try" if dry_run else "keep"], tell)
    if as_json:
        print_json(found)
        return 0
    for name, quantiles in found["measured"].items():
        show(f"{name}: {', '.join(f'{key} {value:.4g}' for key, value in quantiles.items())}")
    show(f"kept in {found['path']}" if found["path"] else "nothing kept")
    return 0


def _measured(arguments: list[str], tell: Callable[[int, int], None]) -> dict[str, Any]:
    """The last line of the measuring process; each line before it is told."""
    said: dict[str, Any] = {}
    with tempfile.TemporaryFile() as err:
        child = subprocess.Popen(
            [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=err, start_new_session=True
        )
        try:
            for line in child.stdout or ():
                said = json.loads(line)
                if "done" in said:
                    tell(said["done"], said["total"])
            child.wait()
        finally:
            kill_group(child.pid)  # with the compile workers it started
            child.wait()
            status("")
        if child.returncode or "measured" not in said:
            err.seek(0)
            raise NotMeasured(_why(child.returncode, said, err.read().decode("utf-8", errors="replace")))
    return said


def _why(code: int, said: dict[str, Any], wrote: str) -> str:
    how = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
    where = f"after {said['done']} of {said['total']} graphs" if "done" in said else "before the first graph"
    last = (wrote.strip().splitlines() or ["it said nothing"])[-1]
    return f"The process that compiles the healthy graphs {how} {where} ({last}), so nothing was kept."
