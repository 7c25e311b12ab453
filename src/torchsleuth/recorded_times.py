"""Compile time from inside a program: what torch has counted so far, or everything between two lines.

print(torchsleuth.compile_times())

with torchsleuth.record_compile_times() as recorded:
    model(batch)
print(recorded.profile().by_phase)
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import time
from collections.abc import Iterator
from typing import Any, Literal

from torchsleuth.front.observe.events import Event
from torchsleuth.front.observe.phases import phase_of
from torchsleuth.front.observe.profile import Profile, profile_of
from torchsleuth.torch_internals.compile_events import (
    LOOK_UP_MODULES,
    frame_times,
    listen_to_compile_events,
    step_times,
    time_look_ups,
)
from torchsleuth.torch_internals.frames import hook_frame_compiles
from torchsleuth.watched.observe.captures import note_frame
from torchsleuth.watched.observe.times import StepWriter


def compile_times(repr: Literal["str", "csv", "dict"] = "str", aggregate: bool = False) -> Any:
    """Time spent compiling in this process so far, by step and by frame; needs no preparation.

    `aggregate` adds up the times of each step, which are otherwise given one by one. A step's time holds that of the
    steps inside it; `record_compile_times` tells them apart. Of frames, torch remembers the last 64.

    >>> sorted(compile_times("dict"))
    ['frames', 'seconds', 'steps']
    """
    if repr not in ("str", "csv", "dict"):
        raise ValueError(f"repr is {repr!r}; it must be 'str', 'csv' or 'dict'")
    steps, frames = step_times(), frame_times()
    if repr == "csv":
        return _csv(steps, aggregate)
    total = sum(frame["seconds"] for frame in frames)
    if repr == "dict":
        told = {
            name: {"phase": phase_of(name), "seconds": sum(times) if aggregate else times}
            for name, times in steps.items()
        }
        return {"seconds": total, "steps": told, "frames": frames}
    lines = [f"compile time: {total:.3f} s in {len(frames)} compiles", "", "by frame"]
    for frame in frames:
        what = f"{frame['function'] or 'backward'}"
        lines.append(f"{frame['seconds']:9.3f} s  {frame['graph']:<6} {what}")
    lines += ["", "by step, each with what is inside it"]
    lines += [
        f"{sum(times):9.3f} s  {len(times):5d}x  {name}  [{phase_of(name) or 'other'}]"
        + ("" if aggregate else f": {', '.join(f'{seconds:.4f}' for seconds in times)}")
        for name, times in sorted(steps.items(), key=lambda item: -sum(item[1]))
    ]
    return "\n".join(lines)


def _csv(steps: dict[str, list[float]], aggregate: bool) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["step", "phase", "count", "seconds"])
    for name, times in steps.items():
        seconds = [sum(times)] if aggregate else times
        count = len(times) if aggregate else 1
        writer.writerows([name, phase_of(name) or "", count, f"{each:.6f}"] for each in seconds)
    return text.getvalue()


class RecordedTimes:
    """What was compiled since recording began: `recorded.profile()`."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def write(self, kind: str, **fields: Any) -> None:
        """One event, as collectors write them."""
        self.events.append(Event(kind, float(fields.pop("at", time.time())), os.getpid(), fields))

    def profile(self) -> Profile:
        """The compile time by phase, graph and function so far; a compile under way counts up to now."""
        return profile_of(sorted(self.events, key=lambda event: event.at))


@contextlib.contextmanager
def record_compile_times() -> Iterator[RecordedTimes]:
    """Records the compile time of everything that is compiled in the block.

    >>> with record_compile_times() as recorded:
    ...     _ = torch.compile(lambda x: x.sin(), backend="eager")(torch.ones(2))
    >>> recorded.profile().seconds > 0
    True
    """
    recorded = RecordedTimes()
    writer = StepWriter(recorded)
    with contextlib.ExitStack() as stack:
        stack.callback(listen_to_compile_events(writer.event))
        stack.callback(hook_frame_compiles(lambda seen: note_frame(seen, recorded, None)))
        for module in LOOK_UP_MODULES:
            stack.callback(time_look_ups(module, writer.event))
        yield recorded
