"""The error over the graph as an SVG: execution order to the right, a log scale upwards, the culprit marked.

Three lines: how far each value is off, how far its kernel goes off by itself, and below them the band that rounding
explains. All text comes from a graph that may be a stranger's, and is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jinja2 import Environment

from torchsleuth.core.cases.analysis import Analysis, ValueAnalysis

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
    """As many values as can be told apart: of each group the one that is furthest off, and the marked one."""
    size = math.ceil(len(values) / MOST_POINTS) or 1
    groups = (values[start : start + size] for start in range(0, len(values), size))
    return [max(group, key=lambda v: (v.node == keep, v.local_times or v.times or 0.0)) for group in groups]


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "".join(_moves(points))


def _moves(points: Sequence[tuple[float, float]]) -> Iterator[str]:
    for place, (x, y) in enumerate(points):
        yield f"{'L' if place else 'M'}{x} {y}"


def _band(points: Sequence[tuple[float, float]], bottom: float) -> str:
    if not points:
        return ""
    return f"M{points[0][0]} {bottom}{''.join(f'L{x} {y}' for x, y in points)}L{points[-1][0]} {bottom}Z"
