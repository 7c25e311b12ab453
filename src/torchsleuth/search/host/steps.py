"""The steps that the front can ask the search host for; each puts what it finds into the case as soon as it has it.

Orders come from the front, and what is found and done is told to it: what it needs at once and cannot read from the
case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchsleuth.core.cases.folder import CaseFolder, open_case
from torchsleuth.core.protocol.codec import plain
from torchsleuth.core.protocol.steps import (
    AdoptOrder,
    AnalyzeOrder,
    Analyzing,
    Asked,
    CaseOrder,
    CheckOrder,
    Done,
    MinifyOrder,
    Order,
    SearchBegins,
    Smaller,
    TriageOrder,
    Verification,
    WorkaroundOrder,
)
from torchsleuth.search.analyze.analyze_case import analyze_case
from torchsleuth.search.blame.triage_case import triage_case
from torchsleuth.search.cure.find import find_workarounds
from torchsleuth.search.minify.case_state import CaseQuestions
from torchsleuth.search.minify.contract import Listener, Reducible
from torchsleuth.search.minify.minify_case import MinifyResult, minify_case
from torchsleuth.search.minify.minify_program import is_program, minify_checked, minify_program
from torchsleuth.search.minify.script_cases import FirstRun, case_of_script, program_of_case

if TYPE_CHECKING:
    from torchsleuth.search.host.main import Front


def adopt(front: Front, questions: CaseQuestions, order: AdoptOrder) -> Done:
    """A script that becomes a case; where it lies."""
    front.begins("running the script")
    how = FirstRun(order.arguments, order.timeout, order.budget, order.uncollected)
    if order.known:
        folder = program_of_case(
            open_case(Path(order.cases), order.known), Path(order.script), questions, how
        )
    else:
        folder = case_of_script(Path(order.script), Path(order.cases), questions, how)
    return Done(case=str(folder.path))


def triage(front: Front, questions: CaseQuestions, order: TriageOrder) -> Done:
    """Who is at fault, as far as that is asked for."""
    front.begins("finding out who is at fault")
    triage_case(
        _folder(order),
        questions,
        budget_seconds=order.budget,
        say=front.said,
        before_minify=order.before_minify,
    )
    return Done()


def minify(front: Front, questions: CaseQuestions, order: MinifyOrder) -> Done:
    """The smallest state that fails, as scripts for the front to verify, the most readable first."""
    folder, told = _folder(order), _Told(front)
    found: MinifyResult[Any]
    if is_program(folder):
        found = minify_program(folder, questions, told, budget_seconds=order.budget)
    else:
        found = minify_case(folder, questions.start_of(folder), questions, told, budget_seconds=order.budget)
        questions.smallest[folder.path] = found.reduction
    seconds = {"search": found.reduction.seconds, "trials": found.trial_seconds}
    return Done(
        reducers=tuple(map(plain, found.reduction.statistics)),
        seconds={"start_up": round(questions.workers.start_up, 2), **seconds},
        explanation=found.explanation,
        also=found.also,
    )


def analyze(front: Front, questions: CaseQuestions, order: AnalyzeOrder) -> Done:
    """Where the compiled graph leaves eager's way; progress is told phase by phase."""
    front.begins("comparing the compiled run with eager, value by value")
    analyze_case(
        _folder(order),
        questions,
        budget_seconds=order.budget,
        without=order.without,
        save=order.save,
        progress=lambda phase, done, of: front.tell(Analyzing(phase, done, of)),
    )
    return Done()


def workaround(front: Front, questions: CaseQuestions, order: WorkaroundOrder) -> Done:
    """What makes the graph pass: what was changed for each workaround that the case then has."""
    front.begins("trying workarounds")
    found = find_workarounds(_folder(order), questions, budget_seconds=order.budget, say=front.said)
    return Done(changes=tuple(found))


def check(front: Front, questions: CaseQuestions, order: CheckOrder) -> Done:
    """The smallest program on which a command of the person's still fails; it is where the order wants it."""
    front.begins("running the command on the whole program")
    reduced = minify_checked(order, questions.store, questions.workers.count, _Told(front))
    return Done(
        reducers=tuple(map(plain, reduced.statistics)),
        seconds={"search": reduced.seconds},
        explanation=(
            f"{reduced.queries} trials{'' if reduced.complete else ', not to the end: the time is used up'}",
        ),
    )


STEPS: dict[type[Order], Callable[..., Done]] = {
    AdoptOrder: adopt,
    TriageOrder: triage,
    MinifyOrder: minify,
    AnalyzeOrder: analyze,
    WorkaroundOrder: workaround,
    CheckOrder: check,
}


def _folder(order: CaseOrder) -> CaseFolder:
    return open_case(Path(order.case).parent, order.case)


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
