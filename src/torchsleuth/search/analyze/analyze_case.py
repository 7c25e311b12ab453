"""`analyze` of a case: one trial watches the compiled graph run; its answer becomes analysis.json and a picture.

The trial tells its parts as they come, and each is put into the case at once: what ends it early leaves what it had.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchsleuth.core.protocol.trials import Outcome, Question
from torchsleuth.core.cases.analysis import FILE, PICTURE, Analysis, require_numbers
from torchsleuth.core.cases.folder import CaseFolder, update_case
from torchsleuth.core.cases.model import Case
from torchsleuth.core.processes.limits import within
from torchsleuth.search.analyze.answer import analysis_of
from torchsleuth.search.analyze.picture import picture
from torchsleuth.search.minify.case_state import CaseQuestions, SearchStart, wait_for_device
from torchsleuth.search.minify.trial_of_state import trial_of

# How often the file is looked at to which the trial tells its parts.
TICK = 0.25
VALUES = "values"

Progress = Callable[[str, int, int], None]


def analyze_case(
    folder: CaseFolder,
    questions: CaseQuestions,
    *,
    budget_seconds: float = 300.0,
    without: tuple[str, ...] = (),
    save: bool = False,
    progress: Progress = lambda phase, done, of: None,
) -> CaseFolder:
    """Where the compiled graph leaves eager's way, written into the case: `analyze_case(folder, questions)`.

    `without` are phases to leave out; with `save` every value and eager's are kept in the case's folder `values`.
    """
    case = folder.case
    require_numbers(case)
    started = time.monotonic()
    workers = questions.workers
    budget_seconds += wait_for_device(workers, case.device, budget_seconds)
    questions.deadline = started + budget_seconds
    start = questions.start_of(folder)
    told = questions.store / f"divergence-{case.id}.jsonl"
    told.unlink(missing_ok=True)
    wishes = {"told": str(told), "without": list(without)}
    if save:
        wishes["values"] = str(folder.file(VALUES))
    trial = trial_of(start.state, start.expected, questions.store)
    trial = replace(trial, question=Question.DIVERGENCE, analysis=wishes)
    limits = within(replace(workers.limits, run=budget_seconds), questions.deadline)
    ticket = workers.submit(trial, limits=limits, fresh=True)
    parts = _Parts(told)
    while True:
        try:
            outcome = ticket.result(TICK)
        except NotYet:
            outcome = None
        if parts.read(progress) and outcome is None:
            folder = _written(folder, _analysis(folder, start, parts.known))
        if outcome is not None:
            break
    whole = not _stopped(outcome)
    found = _analysis(folder, start, {**parts.known, **(outcome.more if whole else {})})
    found = replace(found, complete=whole, error=None if found.culprit else _stopped(outcome))
    if found.within_rounding and (
        unseen := [path for path in case.signature.outputs if not path.startswith("outputs")]
    ):
        found = replace(found, error=_unseen(case, unseen))
    return _written(folder, found)


def _unseen(case: Case, paths: Sequence[str]) -> str:
    return (
        f"the values that were seen are right; what is wrong ({', '.join(paths[:3])}) is none of them: gradients that "
        f"AOTAutograd wrote, or inputs that are written elsewhere; who is at fault: torchsleuth triage {case.id}"
    )


@dataclass
class _Parts:
    """The parts that a trial has told so far."""

    file: Path
    known: dict[str, Any] = field(default_factory=dict)
    place: int = 0

    def read(self, progress: Progress) -> bool:
        """Whether there is a new part; progress is passed on."""
        try:
            with open(self.file, encoding="utf-8") as lines:
                lines.seek(self.place)
                text = lines.read()
        except OSError:
            return False
        whole, _, _ = text.rpartition("\n")
        self.place += len(whole.encode()) + 1 if whole else 0
        fresh = False
        for line in whole.splitlines():
            message = json.loads(line)
            if "part" in message:
                self.known[message["part"]] = message["value"]
                fresh = True
            else:
                progress(message["phase"], message["done"], message["of"])
        return fresh


def _stopped(outcome: Outcome) -> str | None:
    """Why the trial did not come to its end."""
    if outcome.error is not None:
        return f"the analysis could not be done: {outcome.error}"
    if outcome.signature is None:
        return None
    if outcome.signature.kind == "hang":
        return "the time was up before the kernel at which it begins was found (--budget)"
    return f"the analysis ended with its process: {outcome.text.partition(chr(10))[0] or outcome.signature.summary}"


def _analysis(folder: CaseFolder, start: SearchStart, parts: Mapping[str, Any]) -> Analysis:
    record = start.record
    return analysis_of(parts, record.lines, case=folder.case.id, called_from=record.called_from)


def _written(folder: CaseFolder, found: Analysis) -> CaseFolder:
    files = {FILE: json.dumps(found.to_json(), indent=1), PICTURE: picture(found)}
    return update_case(folder, files, analysis=found.summary())
