"""`calibrate`: how far healthy compiled results lie from the truth on this machine, so that verdicts can go by it."""

from __future__ import annotations

import time

import click

from torchsleuth.cli.options import json_option, print_json


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
    from torchsleuth.compare.verdict.calibrate import DTYPES, SEEDS, calibrate
    from torchsleuth.compare.verdict.calibration import save_calibration

    started = time.monotonic()
    total = graphs * len(DTYPES)
    done = 0

    def tell(case: object, verdict: object) -> None:
        nonlocal done
        done += 1
        left = (time.monotonic() - started) / done * (total - done)
        click.echo(f"\rtorchsleuth: {done} of {total} graphs, about {left:.0f} s left ", err=True, nl=False)

    found = calibrate(device, seeds=range(SEEDS.start, SEEDS.start + graphs), on_graph=tell)
    click.echo("", err=True)
    path = None if dry_run else save_calibration(found)
    if as_json:
        print_json({**found.to_json(), "path": str(path) if path else None})
        return 0
    for name, quantiles in found.measured.items():
        click.echo(f"{name}: {quantiles}")
    click.echo("nothing kept" if path is None else f"kept in {path}")
    return 0
