"""A profile in the format that chrome://tracing and Perfetto (https://ui.perfetto.dev) open."""

from __future__ import annotations

from typing import Any

from torchsleuth.front.observe.profile import Profile


def chrome_trace(profile: Profile) -> dict[str, Any]:
    """The document: one complete event for each step, in microseconds from the first step on.

    >>> chrome_trace(Profile())["traceEvents"]
    []
    """
    roots = (*profile.steps, *profile.parallel)
    first = min((step.start for step in roots), default=0.0)
    threads: dict[tuple[int, int], int] = {}
    events: list[dict[str, Any]] = []
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
