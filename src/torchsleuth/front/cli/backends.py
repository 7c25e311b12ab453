"""`backends`: the debugging backends, one line each. Imports neither torch nor any of them."""

from __future__ import annotations

from pathlib import Path

import click

from torchsleuth.front.cli.options import cases_option, json_option
from torchsleuth.front.cli.output import print_json, show
from torchsleuth.torch_core.backends.catalog import CATALOG


@click.command("backends")
@cases_option
@json_option
def backends_verb(cases_dir: Path, as_json: bool) -> int:
    """The debugging backends: torch.compile(f, backend=NAME), no import of torchsleuth needed.

    \b
    torchsleuth backends
    torchsleuth backends --json
    """
    if as_json:
        print_json(
            [
                {
                    "name": each.name,
                    "description": each.line,
                    "options": [{"name": option.name, "description": option.line} for option in each.options],
                }
                for each in CATALOG
            ]
        )
        return 0
    width = max(len(each.name) for each in CATALOG)
    for each in CATALOG:
        show(f"{each.name:{width}}  {each.line}")
        for option in each.options:
            show(f'{"":{width}}    options={{"{option.name}": …}}: {option.line}')
    return 0
