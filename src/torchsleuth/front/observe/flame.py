"""Steps with the same way to them as one: a flame graph, as lines for a terminal and as a drawing (SVG) of its own.

A bar is as wide as the time of its step; what is inside it stands below it. Every word that goes into the drawing is
escaped: names of functions are the program's.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass, field

from torchsleuth.front.observe.phases import PHASES, phase_of
from torchsleuth.front.observe.profile import Profile, Step

# Of the whole; what takes less is not worth a line or a bar.
LEAST_SHARE = 0.01
LEAST_DRAWN_SHARE = 0.001
WRAPPER = 0.97
BAR = 24
WIDTH, ROW, TEXT = 1200, 18, 7
# Far apart for most eyes; the legend names them.
COLOURS = (
    "#4c78a8",
    "#9ecae9",
    "#b279a2",
    "#f58518",
    "#ffbf79",
    "#54a24b",
    "#88d27a",
    "#b79a20",
    "#e45756",
    "#ff9d98",
)
COLOURS_MORE = ("#79706e", "#bab0ac")


@dataclass
class Flame:
    """All steps with the same way to them."""

    name: str
    phase: str
    seconds: float = 0.0
    count: int = 0
    inside: dict[str, Flame] = field(default_factory=dict)

    def add(self, step: Step) -> None:
        """Counts one step, with everything inside it."""
        self.seconds += step.seconds
        self.count += 1
        for inner in step.inside:
            self.inside.setdefault(inner.name, Flame(inner.name, inner.phase)).add(inner)

    def sorted(self) -> list[Flame]:
        """What is inside, the longest first."""
        return sorted(self.inside.values(), key=lambda flame: -flame.seconds)


def flame_of(profile: Profile) -> Flame:
    """The whole compile time, by user function first, so that a person sees whose it is."""
    whole = Flame("compile time", next(iter(PHASES)))
    for step in profile.steps:
        frame = profile.frame_of(step)
        name = f"{frame.function} ({frame.place})" if frame else "not known"
        whole.seconds += step.seconds
        whole.count += 1
        function = whole.inside.setdefault(name, Flame(name, step.phase))
        function.seconds += step.seconds
        function.count += 1
        function.inside.setdefault(step.name, Flame(step.name, step.phase)).add(step)
    return whole


def flame_lines(flame: Flame, depth: int = 10) -> list[str]:
    """The flame as lines: seconds, share as a bar, how often, and the name, indented by what it is inside of.

    >>> print(flame_lines(Flame("compile time", "capture", 2.0, 1))[0])
       2.000 s 100.0 % ████████████████████████     1x compile time
    """
    return list(_lines(flame, flame.seconds or 1.0, depth, 0))


def _lines(flame: Flame, whole: float, depth: int, level: int) -> Iterable[str]:
    share = flame.seconds / whole
    bar = "█" * max(1, round(share * BAR)) if flame.seconds else ""
    way = [flame]
    # Steps that are hardly more than a wrapper around one other are told in one line with it.
    while (
        level
        and len(way[-1].inside) >= 1
        and (only := way[-1].sorted()[0]).seconds >= WRAPPER * flame.seconds
    ):
        way.append(only)
    names = " > ".join(each.name for each in way)
    phase = f"  [{way[-1].phase}]" if phase_of(way[-1].name) else ""
    yield (
        f"{flame.seconds:8.3f} s {100 * share:5.1f} %"
        f" {bar:<{BAR}} {flame.count:5d}x {'  ' * level}{names}{phase}"
    )
    if level < depth:
        for inner in way[-1].sorted():
            if inner.seconds >= LEAST_SHARE * whole:
                yield from _lines(inner, whole, depth, level + 1)


def flame_svg(flame: Flame, title: str) -> str:
    """The flame as a drawing that stands alone: no script, no font, nothing fetched."""
    bars: list[str] = []
    deepest = _draw(flame, flame.seconds or 1.0, 0.0, 0, bars)
    colours = _colours()
    used = [phase for phase in PHASES if phase in _phases(flame)]
    legend = "".join(
        f'<rect x="{8 + 150 * (i % 8)}" y="{26 + 16 * (i // 8)}" width="10" height="10" fill="{colours[phase]}"/>'
        f'<text x="{22 + 150 * (i % 8)}" y="{35 + 16 * (i // 8)}">{html.escape(phase)}</text>'
        for i, phase in enumerate(used)
    )
    top = 36 + 16 * ((len(used) + 7) // 8)
    height = top + ROW * (deepest + 1) + 8
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#ffffff"/>'
        f'<text x="8" y="16" font-weight="bold">{html.escape(title)}</text>{legend}'
        f'<g transform="translate(0,{top})">{"".join(bars)}</g></svg>\n'
    )


def _draw(flame: Flame, whole: float, left: float, level: int, bars: list[str]) -> int:
    width = flame.seconds / whole * (WIDTH - 16)
    words = f"{flame.name}: {flame.seconds:.3f} s, {flame.seconds / whole:.1%}, {flame.count}x, {flame.phase}"
    fitting = flame.name[: max(0, int(width / TEXT) - 1)]
    x, y = 8 + left, level * ROW
    bars.append(
        f'<g><title>{html.escape(words)}</title><rect x="{x:.1f}" y="{y}" width="{max(width, 0.5):.1f}" '
        f'height="{ROW - 2}" fill="{_colours()[flame.phase]}" rx="2"/>'
        + (f'<text x="{x + 3:.1f}" y="{y + 12}">{html.escape(fitting)}</text>' if len(fitting) > 2 else "")
        + "</g>"
    )
    deepest = level
    for inner in flame.sorted():
        if inner.seconds >= LEAST_DRAWN_SHARE * whole:
            deepest = max(deepest, _draw(inner, whole, left, level + 1, bars))
            left += inner.seconds / whole * (WIDTH - 16)
    return deepest


def _phases(flame: Flame) -> set[str]:
    return {flame.phase}.union(*(_phases(inner) for inner in flame.inside.values()))


def _colours() -> dict[str, str]:
    return dict(zip(PHASES, (*COLOURS, *COLOURS_MORE)))
