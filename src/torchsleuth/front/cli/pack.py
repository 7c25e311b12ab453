"""`pack` and `unpack`: a case as one file to share, with the list of what is in it, and back. Nothing is executed."""

from __future__ import annotations

from pathlib import Path

import click

from torchsleuth.core.cases.folder import open_case
from torchsleuth.core.cases.packing import pack_case, unpack_case
from torchsleuth.front.cli.options import cases_option, json_option
from torchsleuth.front.cli.output import print_json, show


@click.command("pack")
@click.argument("case", default="last")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Where to."
)
@cases_option
@json_option
def pack_verb(case: str, output: Path | None, cases_dir: Path, as_json: bool) -> int:
    """Write a case into one file to share, and list what is in it and what was removed.

    Secrets, the home folder, the user's name, how the program was started and work files are removed. Source lines of
    your program and the values of kept inputs are in it: read the list before you send it.

    \b
    torchsleuth pack last
    torchsleuth pack 3f9a -o broken-softmax.zip
    """
    folder = open_case(cases_dir, case)
    packed = pack_case(folder, output or Path(f"torchsleuth-{folder.case.id}.zip"))
    if as_json:
        print_json(
            {
                "path": str(packed.path),
                "files": [{"name": name, "bytes": size} for name, size in packed.files],
                "removed": [{"name": name, "why": why} for name, why in packed.removed],
            }
        )
    else:
        show(str(packed).rstrip(), lines=True)
        show(f"packed: {packed.path}; the other side looks at it with: torchsleuth show {packed.path.name}")
    return 0


@click.command("unpack")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@cases_option
@json_option
def unpack_verb(file: Path, cases_dir: Path, as_json: bool) -> int:
    """Put a packed case among the cases here, so that other verbs can work on it. Nothing of it is executed.

    \b
    torchsleuth unpack torchsleuth-3f9a1c07.zip
    """
    folder = unpack_case(file, cases_dir)
    if as_json:
        print_json({**folder.case.to_json(), "path": str(folder.path)})
    else:
        show(f"unpacked: {folder.path}; next: torchsleuth show {folder.case.id}")
    return 0
