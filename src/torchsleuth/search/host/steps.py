"""The steps that the front can ask the search host for; each puts what it finds into the case as soon as it has it.

What goes back to the front is what it needs at once and cannot read from the case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torchsleuth.core.cases.folder import CaseFolder, open_case
from torchsleuth.core.protocol.codec import plain
from torchsleuth.core.protocol.steps import (
    Analyzing,
    Asked,
    Done,
    SearchBegins,
    Smaller,
    Verification,
)
from torchsleuth.search.analyze.analyze_case import analyze_case
from torchsleuth.search.blame.triage_case import triage_case
from torchsleuth.search.cure.find import find_workarounds
from torchsleuth.search.host.front import Front
from torchsleuth.search.minify.case_state import CaseQuestions
from torchsleuth.search.minify.contract import Listener, Reducible
from torchsleuth.search.minify.minify_case import MinifyResult, minify_case
from torchsleuth.search.minify.minify_program import is_program, minify_program
from torchsleuth.search.minify.script_cases import FirstRun, case_of_script


def adopt(
    front: Front,
    questions: CaseQuestions,
    *,
    script: str,
    cases: str,
    budget: float,
    arguments: Sequence[str] = (),
    timeout: float | None = None,
    uncollected: bool = False,
) -> Done:
    """A script that becomes a case; where it lies."""
    front.begins("running the script")
    how = FirstRun(tuple(arguments), timeout, budget, uncollected)
    folder = case_of_script(Path(script), Path(cases), questions, how)
    return Done(case=str(folder.path))


def triage(
    front: Front, questions: CaseQuestions, *, case: str, budget: float, before_minify: bool = False
) -> Done:
    """Who is at fault; what takes many compiles of a large graph is put off where it is about to become small."""
    front.begins("finding out who is at fault")
    triage_case(_folder(case), questions, budget_seconds=budget, say=front.said, before_minify=before_minify)
    return Done()


def minify(front: Front, questions: CaseQuestions, *, case: str, budget: float) -> Done:
    """The smallest state that fails, as scripts for the front to verify, the most readable first."""
    folder, told = _folder(case), _Told(front)
    found: MinifyResult[Any]
    if is_program(folder):
        found = minify_program(folder, questions, told, budget_seconds=budget)
    else:
        found = minify_case(folder, questions.start_of(folder), questions, told, budget_seconds=budget)
        questions.smallest[folder.path] = found.reduction
    seconds = {"search": found.reduction.seconds, "trials": found.trial_seconds}
    return Done(
        reducers=tuple(map(plain, found.reduction.statistics)),
        seconds={"start_up": round(questions.workers.start_up, 2), **seconds},
        explanation=found.explanation,
        also=found.also,
    )


def analyze(
    front: Front,
    questions: CaseQuestions,
    *,
    case: str,
    budget: float,
    without: Sequence[str] = (),
    save: bool = False,
) -> Done:
    """Where the compiled graph leaves eager's way; progress is told phase by phase."""
    front.begins("comparing the compiled run with eager, value by value")
    analyze_case(
        _folder(case),
        questions,
        budget_seconds=budget,
        without=tuple(without),
        save=save,
        progress=lambda phase, done, of: front.tell(Analyzing(phase, done, of)),
    )
    return Done()


def workaround(front: Front, questions: CaseQuestions, *, case: str, budget: float) -> Done:
    """What makes the graph pass: what was changed for each workaround that the case then has."""
    front.begins("trying workarounds")
    found = find_workarounds(_folder(case), questions, budget_seconds=budget, say=front.said)
    return Done(changes=tuple(found))


STEPS: dict[str, Callable[..., Done]] = {
    "adopt": adopt,
    "triage": triage,
    "minify": minify,
    "analyze": analyze,
    "workaround": workaround,
}


def _folder(case: str) -> CaseFolder:
    return open_case(Path(case).parent, case)


class _Told(Listener):
    """A listener of the search that passes everything on to the front."""

    def __init__(self, front: Front) -> None:
        self.front = front

    def started(self, state: Reducible) -> None:
        self.front.tell(SearchBegins(*state.amount))

    def asked(self, reducer: str, what: str, failed: Sequence[bool | None]) -> None:
        self.front.tell(Asked(reducer, len(failed)))

    def smaller(self, reducer: str, state: Reducible) -> None:
        self.front.tell(Smaller(reducer, state.amount[0]))

    def said(self, text: str) -> None:
        self.front.said(text)

    def begins(self, doing: str) -> bool:
        return self.front.begins(doing)

    def written(self, wanted: Verification) -> None:
        """The front runs the scripts while what may vary is asked here."""
        self.front.tell(wanted)
