"""A profile in words: what a person reads in a terminal, and rows for a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

from torchsleuth.front.observe.chrome_trace import chrome_trace
from torchsleuth.front.observe.flame import flame_lines, flame_of, flame_svg
from torchsleuth.front.observe.phases import PHASES
from torchsleuth.front.observe.plurals import counted
from torchsleuth.front.observe.profile import Profile, Row

MOST_ROWS = 20


def profile_lines(profile: Profile) -> Iterator[str]:
    """The sums by phase, function and graph, what caches answered, and the flame.

    >>> list(profile_lines(Profile()))
    ['compile time: 0.000 s in 0 compiles']
    """
    yield headline(profile)
    if not profile.steps:
        return
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


def headline(profile: Profile) -> str:
    """The whole in one line."""
    return f"compile time: {profile.seconds:.3f} s in {counted(len(profile.steps), 'compile')}"


def profile_files(profile: Profile) -> dict[str, Any]:
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
