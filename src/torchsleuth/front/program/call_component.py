"""Which part of the compiler makes a call differ from eager that Dynamo captures rightly: its script is run with less.

Every graph of such a call agrees with eager in its numbers, so that no graph can be asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from torchsleuth.core.cases.folder import CaseFolder, update_case
from torchsleuth.core.cases.model import Rung, Triage
from torchsleuth.core.change_table import AOT, DECOMPOSED
from torchsleuth.front.program.runs import Program, run_program

# A run is not begun with less than this left.
LEAST_SECONDS = 15.0
# With what a script ends that reproduces, and with what one ends that does not.
_REPRODUCED, _NOT_REPRODUCED = 1, 0


def blame_call(
    folder: CaseFolder, script: str, python: str, deadline: float, say: Callable[[str], None]
) -> CaseFolder:
    """The case of a wrong call, its component known by runs of its `script`; as it was where the time is up.

    Used as `blame_call(folder, "original.py", sys.executable, time.monotonic() + 60, print).case.triage.component`.
    """
    known = folder.case.triage
    if folder.case.phase != "run" or known is None or known.component != "inductor":
        return folder
    program = Program((python, str(folder.file(script))), str(folder.path))
    rungs: list[Rung] = []
    # The second is less of the compiler than the first: where that passes, so does this.
    for change in (DECOMPOSED, AOT):
        left = deadline - time.monotonic()
        if left < LEAST_SECONDS:
            return folder
        run = run_program(program, change, timeout=left)
        answer = {_REPRODUCED: "fails", _NOT_REPRODUCED: "passes"}.get(run.status, "fails differently")
        say(f"case {folder.case.id}: {change.what}: {answer} ({run.seconds:.0f} s)")
        rungs.append(Rung(change.what, answer, run.seconds))
        if run.status != _REPRODUCED:
            break
    failing = [rung for rung in rungs if rung.answer == "fails"]
    component = ("inductor", DECOMPOSED.component, AOT.component)[len(failing)]
    return update_case(folder, triage=_with(known, component, rungs))


def _with(known: Triage, component: str, rungs: list[Rung]) -> Triage:
    return replace(
        known,
        component=component,
        labels=("oncall: pt2", f"module: {component}"),
        rungs=tuple(rungs),
        trials=len(rungs),
        seconds=round(sum(rung.seconds for rung in rungs), 2),
    )
