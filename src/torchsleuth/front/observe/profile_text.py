"""A profile as a person reads it: in a terminal, as rows for a spreadsheet, as a flame graph, and for Perfetto.

A flame puts steps with the same way to them together; a bar is as wide as the time of its step, and what is inside it
stands below it. Every word that goes into the drawing is escaped: names of functions are the program's.
"""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchsleuth.front.observe.events import counted
from torchsleuth.front.observe.profile import PHASES, Profile, Row, Step, phase_of

MOST_ROWS = 20


def profile_lines(profile: Profile) -> Iterator[str]:
    """The sums by phase, function and graph, what caches answered, and the flame.

    >>> list(profile_lines(Profile()))
    ['compile time: 0.000 s in 0 compiles']
    """
    yield headline(profile)
    if not profile.steps:
        return
    yield from loop_lines(profile)
    yield from ("", "by phase")
    width = max(len(row.name) for row in profile.by_phase)
    for row in profile.by_phase:
        yield f"{row.seconds:9.3f} s {_share(row, profile)}  {row.name:<{width}}  {PHASES[row.name]}"
    yield from ("", "by function", *_rows(profile.by_function, profile))
    yield from ("", "by graph", *_rows(profile.by_graph, profile))
    if profile.parallel:
        seconds = sum(step.seconds for step in profile.parallel)
        yield from ("", f"on other threads and processes meanwhile: {seconds:.3f} s (not in the sums above)")
    if profile.caches:
        yield ""
    for name, answers in sorted(profile.caches.items()):
        said = ", ".join(f"{count} {answer}" for answer, count in sorted(answers.items()))
        yield f"cache {name}: {said}"
    unfinished = [step.name for root in profile.steps for step in root.walk() if not step.ended]
    if unfinished:
        yield from ("", f"not ended when the program stopped: {', '.join(unfinished)}")
    yield from ("", "where the time went (own and inside)", *flame_lines(flame_of(profile)))


# A loop with less of a graph is no cause.
LEAST_OF_LOOP = 0.5


def loop_lines(profile: Profile) -> Iterator[str]:
    """The loop that makes a compile long, and what is known to shorten it."""
    loop = profile.loop
    if loop is None or loop.share < LEAST_OF_LOOP:
        return
    yield ""
    yield (
        f"cause   the loop around {Path(loop.file).name}:{loop.line} was unrolled {loop.rounds} times: "
        f"{100 * loop.share:.0f} % of the {loop.of} operations of its graph"
    )
    yield f"            {loop.code}"
    if loop.calls is None:
        region = "@torch.compiler.nested_compile_region"
        yield f"idea    move the body of the loop into a function, and compile that once: {region} (not tried)"
        return
    place = f"`def {loop.calls[2]}` that holds {Path(loop.calls[0]).name}:{loop.calls[1]}"
    if loop.whole is None or loop.once is None:
        came = f"not tried{': ' + loop.why_not if loop.why_not else ''}"
    else:
        came = f"tried, each in an empty cache: compile time {loop.whole:.1f} → {loop.once:.1f} s"
    helps = loop.whole is not None and loop.once is not None and loop.once < 0.9 * loop.whole
    yield f"{'paste ' if helps else 'idea  '}  @torch.compiler.nested_compile_region   above the {place}"
    yield f"            ({came})"


def headline(profile: Profile) -> str:
    """The whole in one line."""
    return f"compile time: {profile.seconds:.3f} s in {counted(len(profile.steps), 'compile')}"


def profile_files(profile: Profile) -> dict[str, object]:
    """A profile as files beside its document: for a spreadsheet, as a drawing, and for Perfetto."""
    return {
        "times.csv": profile_csv(profile),
        "profile.svg": flame_svg(flame_of(profile), headline(profile)),
        "profile-trace.json": chrome_trace(profile),
    }


def _rows(rows: Sequence[Row], profile: Profile) -> list[str]:
    shown = [_row(row, profile) for row in rows[:MOST_ROWS]]
    left = rows[MOST_ROWS:]
    more = f"{sum(row.seconds for row in left):9.3f} s          {len(left)} more"
    return [*shown, more] if left else shown


def _row(row: Row, profile: Profile) -> str:
    longest = sorted(row.phases.items(), key=lambda item: -item[1])[:3]
    phases = ", ".join(f"{phase} {seconds:.3f}" for phase, seconds in longest if seconds >= 0.0005)
    times = "" if row.count == 1 else f", {row.count}x"
    whose = (
        f" {row.function} at {row.place}" if row.function and not row.name.startswith(row.function) else ""
    )
    return f"{row.seconds:9.3f} s {_share(row, profile)}  {row.name}{whose}{times}: {phases}"


def _share(row: Row, profile: Profile) -> str:
    return f"{100 * row.seconds / profile.seconds:5.1f} %" if profile.seconds else "        "


def profile_csv(profile: Profile) -> str:
    """A row for each graph, a column for each phase, in seconds."""
    text = io.StringIO()
    phases = [row.name for row in profile.by_phase]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["graph", "function", "place", "compiles", "seconds", *phases])
    for row in profile.by_graph:
        seconds = (f"{row.phases.get(phase, 0.0):.6f}" for phase in phases)
        writer.writerow([row.name, row.function, row.place, row.count, f"{row.seconds:.6f}", *seconds])
    return text.getvalue()


# Of the whole; what takes less is not worth a line or a bar.
LEAST_SHARE = 0.01
LEAST_DRAWN_SHARE = 0.001
WRAPPER = 0.97
BAR = 24
WIDTH, ROW, TEXT = 1200, 18, 7
# Far apart for most eyes; the legend names them. In the order of the phases.
_COLOURS = (
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
    "#79706e",
    "#bab0ac",
)
COLOURS = dict(zip(PHASES, _COLOURS))
DEEPEST = 10


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


def flame_lines(flame: Flame) -> list[str]:
    """The flame as lines: seconds, share as a bar, how often, and the name, indented by what it is inside of.

    >>> print(flame_lines(Flame("compile time", "capture", 2.0, 1))[0])
       2.000 s 100.0 % ████████████████████████     1x compile time
    """
    return list(_lines(flame, flame.seconds or 1.0, 0))


def _lines(flame: Flame, whole: float, level: int) -> Iterable[str]:
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
    if level < DEEPEST:
        for inner in way[-1].sorted():
            if inner.seconds >= LEAST_SHARE * whole:
                yield from _lines(inner, whole, level + 1)


def flame_svg(flame: Flame, title: str) -> str:
    """The flame as a drawing that stands alone: no script, no font, nothing fetched."""
    bars: list[str] = []
    deepest = _draw(flame, flame.seconds or 1.0, 0.0, 0, bars)
    used = [phase for phase in PHASES if phase in _phases(flame)]
    legend = "".join(
        f'<rect x="{8 + 150 * (i % 8)}" y="{26 + 16 * (i // 8)}" width="10" height="10" fill="{COLOURS[phase]}"/>'
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
        f'height="{ROW - 2}" fill="{COLOURS[flame.phase]}" rx="2"/>'
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


def chrome_trace(profile: Profile) -> dict[str, object]:
    """The document: one complete event for each step, in microseconds from the first step on.

    >>> chrome_trace(Profile())["traceEvents"]
    []
    """
    roots = (*profile.steps, *profile.parallel)
    first = min((step.start for step in roots), default=0.0)
    threads: dict[tuple[int, int], int] = {}
    events: list[dict[str, object]] = []
    for root in roots:
        frame = profile.frame_of(root)
        for step in root.walk():
            number = threads.setdefault((step.pid, step.thread), len(threads))
            arguments = {
                "graph": step.graph,
                "function": str(frame) if frame else None,
                "torch": step.function,
            }
            events.append(
                {
                    "ph": "X",
                    "name": step.name,
                    "cat": step.phase,
                    "ts": round((step.start - first) * 1e6, 1),
                    "dur": round(step.seconds * 1e6, 1),
                    "pid": step.pid,
                    "tid": number,
                    "args": {key: value for key, value in arguments.items() if value is not None},
                }
            )
    names = [
        {
            "ph": "M",
            "name": "thread_name",
            "pid": pid,
            "tid": number,
            "args": {"name": "compiles" if number == 0 else f"thread {number}"},
        }
        for (pid, _), number in threads.items()
    ]
    return {"traceEvents": [*names, *events], "displayTimeUnit": "ms"}
