"""The program is at fault only if it fails without compilation: where only its graph does, the capture is wrong.

Dynamo may put into a graph what the program does not do. Such a graph fails in eager as well, and looks like a bug of
the program's until the program itself is run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from torchsleuth.core.cases.folder import CaseFolder, update_case
from torchsleuth.core.change_table import UNCOMPILED
from torchsleuth.front.program.runs import CannotRunProgram, program_of, run_program

LEAST_SECONDS = 20.0


def acquitted(folder: CaseFolder, deadline: float, say: Callable[[str], None]) -> CaseFolder:
    """The case with Dynamo at fault instead of the program, where the program passes when nothing is compiled.

    What `acquitted(folder, time.monotonic() + 60, print).case.triage.component` says is then "dynamo".
    """
    triage = folder.case.triage
    if triage is None or triage.component != "program":
        return folder
    try:
        program = program_of(folder)
    except CannotRunProgram:
        return folder
    say(
        f"case {folder.case.id}: its graph fails without the compiler, too; running the program with nothing compiled"
    )
    left = max(LEAST_SECONDS, deadline - time.monotonic())
    run = run_program(program, UNCOMPILED, timeout=left)
    if not run.healthy:
        ended = "was not done in time" if run.timed_out else f"ends with status {run.status}"
        said = f"{triage.detail}; the program with nothing compiled {ended}"
        return update_case(folder, triage=replace(triage, detail=said, pinned=not run.timed_out))
    detail = f"the program passes when nothing is compiled, the graph that Dynamo made of it does not: {triage.detail}"
    found = replace(
        triage,
        component="dynamo",
        part="capture",
        detail=detail,
        pinned=True,
        labels=("oncall: pt2", "module: dynamo"),
    )
    return update_case(folder, triage=found)
