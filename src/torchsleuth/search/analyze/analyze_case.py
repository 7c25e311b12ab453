"""`analyze` of a case: one trial watches the compiled graph run; its answer becomes analysis.json and a picture.

The trial writes its parts as they come, and each is put into the case at once: what ends it early leaves what it had.
The picture is the error over the graph as an SVG: execution order to the right, a log scale upwards, the culprit
marked. Three lines: how far each value is off, how far its kernel goes off by itself, and below them the band that
rounding explains. All text comes from a graph that may be a stranger's, and is escaped.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field, replace
from pathlib import Path

from jinja2 import Environment

from torchsleuth.core.cases.analysis import (
    FILE,
    PICTURE,
    Analysis,
    ValueAnalysis,
    analysis_of,
    require_numbers,
)
from torchsleuth.core.cases.folder import CaseFolder, update_case
from torchsleuth.core.processes.limits import within
from torchsleuth.core.protocol.codec import Document
from torchsleuth.core.protocol.trials import AnalysisWishes, Outcome, Question
from torchsleuth.search.minify.case_state import CaseQuestions, wait_for_device
from torchsleuth.search.minify.states import trial_of

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
    file = questions.store / f"divergence-{case.id}.jsonl"
    file.unlink(missing_ok=True)
    wishes = AnalysisWishes(str(file), str(folder.file(VALUES)) if save else None, without)
    trial = trial_of(start.state, start.expected, questions.store)
    trial = replace(trial, question=Question.DIVERGENCE, analysis=wishes)
    limits = within(replace(workers.limits, run=budget_seconds), questions.deadline)
    ticket = workers.submit(trial, limits=limits, fresh=True)
    parts = _Parts(file)

    def analysis(more: Document) -> Analysis:
        known, record = {**parts.known, **more}, start.record
        return analysis_of(known, record.lines, case=case.id, called_from=record.called_from)

    outcome: Outcome | None = None
    while outcome is None:
        with contextlib.suppress(NotYet):
            outcome = ticket.result(TICK)
        if parts.read(progress) and outcome is None:
            folder = _written(folder, analysis({}))
    stopped = _stopped(outcome)
    found = analysis({} if stopped else outcome.value)
    found = replace(found, complete=not stopped, error=None if found.culprit else stopped)
    unseen = [path for path in case.signature.outputs if not path.startswith("outputs")]
    if found.within_rounding and unseen:
        why = (
            f"the values that were seen are right; what is wrong ({', '.join(unseen[:3])}) is none of them: gradients "
            "that AOTAutograd wrote, or inputs that are written elsewhere; "
            f"who is at fault: torchsleuth triage {case.id}"
        )
        found = replace(found, error=why)
    return _written(folder, found)


@dataclass
class _Parts:
    """The parts that a trial has written so far."""

    file: Path
    known: dict[str, object] = field(default_factory=dict)
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


def _written(folder: CaseFolder, found: Analysis) -> CaseFolder:
    files = {FILE: json.dumps(found.to_json(), indent=1), PICTURE: picture(found)}
    return update_case(folder, files, analysis=found.summary())


WIDTH, HEIGHT = 960, 360
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 46, 46
# What is less is drawn as this: a value that is exact has no logarithm.
LEAST, MOST = 1e-18, 1e18
# More points than the picture has places for; of neighbours the largest is drawn.
MOST_POINTS = 800

_TEMPLATE = Environment(autoescape=True).from_string(
    """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{ width }} {{ height }}" role="img"
 font-family="system-ui, sans-serif" font-size="11">
<title>{{ title }}</title>
<rect width="{{ width }}" height="{{ height }}" fill="#fff"/>
<text x="{{ left }}" y="18" font-size="13" font-weight="600">{{ title }}</text>
<g fill="none" stroke="#e3e3e3">{% for y, _ in ticks %}
<path d="M{{ left }} {{ y }}H{{ right }}"/>{% endfor %}</g>
<g fill="#666" text-anchor="end">{% for y, text in ticks %}
<text x="{{ left - 6 }}" y="{{ y + 4 }}">{{ text }}</text>{% endfor %}</g>
<path d="{{ band }}" fill="#cfe3f7" fill-opacity=".6"/>
<path d="{{ off }}" fill="none" stroke="#c0392b" stroke-width="1.5"/>
<path d="{{ own }}" fill="none" stroke="#555" stroke-dasharray="3 3"/>
{% if mark %}<path d="M{{ mark.x }} {{ top }}V{{ bottom }}" stroke="#c0392b" stroke-opacity=".5"/>
<circle cx="{{ mark.x }}" cy="{{ mark.y }}" r="4" fill="#c0392b"/>
<text x="{{ mark.text_x }}" y="{{ top - 6 }}" text-anchor="{{ mark.anchor }}" fill="#c0392b">{{ mark.text }}</text>
{% endif %}<g fill="#444"><text x="{{ left }}" y="{{ height - 14 }}">values of the compiled run, in order of execution \
({{ count }})</text>
<text x="{{ right }}" y="{{ height - 14 }}" text-anchor="end">red: off · dashed: its kernel alone · \
blue: rounding</text></g>
</svg>
"""
)


@dataclass(frozen=True)
class _Mark:
    x: float
    y: float
    text: str
    text_x: float
    anchor: str


def picture(analysis: Analysis) -> str:
    """The SVG of an analysis: `Path("analysis.svg").write_text(picture(analysis))`."""
    culprit = analysis.culprit
    at = culprit.seen_at or culprit.node if culprit is not None else None
    values = _thinned(analysis.values, at)
    numbers = [n for value in values for n in (value.off, value.local_off, value.noise) if n]
    low = math.floor(math.log10(min(numbers, default=1e-7)))
    high = max(low + 2, math.ceil(math.log10(max(numbers, default=1.0))))
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def x(place: int) -> float:
        return round(LEFT + (right - LEFT) * (place + 0.5) / max(len(values), 1), 1)

    def y(number: float | None) -> float:
        power = math.log10(min(max(number or LEAST, LEAST), MOST))
        return round(bottom - (bottom - TOP) * min(1.0, max(0.0, (power - low) / (high - low))), 1)

    marked = next((place for place, value in enumerate(values) if value.node == at), None)
    mark = None
    if marked is not None and culprit is not None:
        here = values[marked]
        late = marked > len(values) / 2
        text = f"{culprit.op}  {culprit.user_line or ''}".strip()
        mark = _Mark(
            x(marked),
            y(here.local_off or here.off),
            text,
            x(marked) + (-6 if late else 6),
            "end" if late else "start",
        )
    step = max(1, (high - low) // 8)
    return _TEMPLATE.render(
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        right=right,
        top=TOP,
        bottom=bottom,
        title=f"error over the graph, case {analysis.case}",
        ticks=[(y(10.0**power), f"1e{power}") for power in range(low, high + 1, step)],
        band=_band([(x(p), y(v.noise or v.local_noise)) for p, v in enumerate(values)], bottom),
        off=_path([(x(p), y(v.off)) for p, v in enumerate(values) if v.off is not None]),
        own=_path([(x(p), y(v.local_off)) for p, v in enumerate(values) if v.local_off is not None]),
        mark=mark,
        count=len(analysis.values),
    )


def _thinned(values: Sequence[ValueAnalysis], keep: str | None) -> list[ValueAnalysis]:
    """As many values as can be seen apart: of each group the one that is furthest off, and the marked one."""
    size = math.ceil(len(values) / MOST_POINTS) or 1
    groups = (values[start : start + size] for start in range(0, len(values), size))
    return [max(group, key=lambda v: (v.node == keep, v.local_times or v.times or 0.0)) for group in groups]


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "".join(f"{'L' if place else 'M'}{x} {y}" for place, (x, y) in enumerate(points))


def _band(points: Sequence[tuple[float, float]], bottom: float) -> str:
    """The area below a path."""
    if not points:
        return ""
    return _path([(points[0][0], bottom), *points, (points[-1][0], bottom)]) + "Z"
