"""The steps that the front can ask the search host for; each puts what it finds into the case as soon as it has it.

What goes back to the front is what it needs at once and cannot read from the case.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torchsleuth.cases.folder import CaseFolder, open_case
from torchsleuth.graphs.cut import calls_of
from torchsleuth.host.main import Front
from torchsleuth.minify.case import WrittenScript, minify_case
from torchsleuth.minify.script_cases import case_of_script
from torchsleuth.minify.search.contract import State
from torchsleuth.triage.case import triage_case
from torchsleuth.workaround.find import workarounds_of
from torchsleuth.workers.queue import Desk


def adopt(front: Front, desk: Desk, *, script: str, cases: str, budget: float) -> dict[str, Any]:
    """A script that becomes a case; where it lies."""
    front.begins("reading the script")
    return {"case": str(case_of_script(Path(script), Path(cases), desk).path)}


def triage(front: Front, desk: Desk, *, case: str, budget: float) -> dict[str, Any]:
    """Who is at fault."""
    triage_case(_opened(case), workers=desk, budget_seconds=budget, say=front.said, begins=front.begins)
    return {}


def minify(front: Front, desk: Desk, *, case: str, budget: float) -> dict[str, Any]:
    """The smallest state that fails, as scripts for the front to verify, the most readable first."""
    result = minify_case(
        _opened(case), workers=desk, budget_seconds=budget, listener=_Told(front), begins=front.begins
    )
    return {
        "reducers": [dataclasses.asdict(row) for row in result.reduction.statistics],
        "explanation": list(result.explanation.sentences),
        "also": list(result.also),
        "seconds": {
            "start_up": round(desk.start_up, 2),
            "search": result.reduction.seconds,
            "trials": result.trial_seconds,
        },
    }


def workaround(front: Front, desk: Desk, *, case: str, budget: float) -> dict[str, Any]:
    """What makes the graph pass, with how to run a whole program so."""
    found = workarounds_of(
        _opened(case), workers=desk, budget_seconds=budget, say=front.said, begins=front.begins
    )
    return {"attempts": [attempt.to_json() for attempt in found]}


STEPS: dict[str, Callable[..., dict[str, Any]]] = {
    "adopt": adopt,
    "triage": triage,
    "minify": minify,
    "workaround": workaround,
}


def _opened(case: str) -> CaseFolder:
    return open_case(Path(case).parent, case)


class _Told:
    """A listener of the search that passes everything on to the front."""

    def __init__(self, front: Front) -> None:
        self.front = front
        self.last = 0.0

    def started(self, state: State) -> None:
        self.front.tell(started=calls_of(state.graph))

    def asked(self, reducer: str, what: str, failed: Sequence[bool | None]) -> None:
        self.front.tell(asked=reducer, trials=len(failed))

    def smaller(self, reducer: str, state: State) -> None:
        self.front.tell(smaller=calls_of(state.graph), reducer=reducer)

    def said(self, text: str) -> None:
        self.front.said(text)

    def written(self, scripts: Sequence[WrittenScript], runs: int) -> None:
        """The scripts to verify; the front runs them while what may vary is asked here."""
        self.front.tell(scripts=[script.to_json() for script in scripts], times=runs, at=time.time())
