"""`list` and `show`: look at cases. Nothing of a case is executed here, and its strings are made safe to print."""

from __future__ import annotations

from pathlib import Path

import click

from torchsleuth.core.cases.folder import CaseFolder, list_cases, open_case
from torchsleuth.core.cases.packing import is_packed, read_packed
from torchsleuth.core.protocol.codec import to_json
from torchsleuth.front.cli.options import cases_option, json_option
from torchsleuth.front.cli.output import print_json, say
from torchsleuth.front.supervise.leftovers import leftover_spools


@click.command("list")
@cases_option
@json_option
def list_verb(cases_dir: Path, as_json: bool) -> int:
    """The cases here, newest first.

    \b
    torchsleuth list
    torchsleuth list --cases /shared/cases --json
    """
    found = list_cases(cases_dir)
    left = len(leftover_spools(cases_dir))
    if left:
        say(
            f"{left} {'program that died has' if left == 1 else 'programs that died have'} left a record here; "
            f"the next `torchsleuth run` with these cases makes a case of it"
        )
    if as_json:
        print_json([to_json(summary) for summary in found])
        return 0
    from torchsleuth.front.report.terminal import show_list

    show_list(found, cases_dir)
    return 0


@click.command("show")
@click.argument("case", default="last")
@cases_option
@json_option
def show_verb(case: str, cases_dir: Path, as_json: bool) -> int:
    """One case: what failed, where, and what is known about it. CASE is an id, a prefix, a path, `last`,
    or a packed file.

    \b
    torchsleuth show last
    torchsleuth show 3f9a --json
    """
    packed = is_packed(case)
    folder = CaseFolder(Path(case), read_packed(Path(case))) if packed else open_case(cases_dir, case)
    if as_json:
        print_json({**folder.case.to_json(), "path": str(folder.path)})
        return 0
    from torchsleuth.front.report.terminal import show_case

    show_case(folder, packed)
    return 0
