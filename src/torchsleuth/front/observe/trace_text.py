"""The capture of a program in words, for a terminal: the last attempt of each frame as a tree, all else as sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchsleuth.front.observe.plurals import counted
from torchsleuth.front.observe.trace_tree import Node, Trace, TracedFrame

MOST_FRAMES = 50
MOST_LINES = 60


def trace_lines(trace: Trace) -> Iterator[str]:
    """What a person reads: each frame, and below it what Dynamo did there.

    >>> list(trace_lines(Trace(())))
    ['capture: 0 frames, 0 instructions']
    """
    frames = trace.frames
    instructions = sum(attempt.total("instructions") for frame in frames for attempt in frame.attempts)
    yield f"capture: {counted(len(frames), 'frame')}, {counted(instructions, 'instruction')}"
    for frame in frames[:MOST_FRAMES]:
        yield ""
        yield from frame_lines(frame)
    if len(frames) > MOST_FRAMES:
        yield ""
        yield f"... and {len(frames) - MOST_FRAMES} more frames: see trace.html and trace.json"


def frame_lines(frame: TracedFrame) -> list[str]:
    """One frame: a headline, earlier attempts, the tree of the last one, its guards."""
    again = ", compiled again" if frame.recompiled else ""
    place = f"{Path(frame.file).name}:{frame.line}"
    lines = [f"{frame.graph}  {frame.function}  {place}  {_time(frame.seconds)}  {frame.outcome}{again}"]
    for number, attempt in enumerate(frame.attempts[:-1]):
        lines.append(
            f"  attempt {number}: {attempt.facts.get('how')} after {attempt.total('instructions')} instructions, "
            f"{_time(attempt.facts.get('seconds'))}"
        )
    if frame.attempts:
        tree = list(_tree(frame.attempts[-1], 1))
        lines += tree[:MOST_LINES]
        if len(tree) > MOST_LINES:
            lines.append(f"  ... and {len(tree) - MOST_LINES} more lines: see trace.html and trace.json")
    if frame.guard_count:
        kinds = Counter(str(guard.get("kind")) for guard in frame.guards)
        listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(6))
        lines.append(f"  guards: {frame.guard_count} ({listed})")
    return lines


def _tree(node: Node, level: int) -> Iterator[str]:
    yield "  " * level + _words(node)
    for inner in node.inside:
        yield from _tree(inner, level + 1)


def _words(node: Node) -> str:
    facts = node.facts
    if node.kind == "call":
        called = f" (called in line {facts['called_from']})" if facts.get("called_from") else ""
        ended = "" if facts.get("how") == "returned" else f", {facts.get('how')}"
        place = f"{Path(str(facts.get('file'))).name}:{facts.get('line')}"
        what = f"{facts.get('instructions')} instructions, {_time(facts.get('seconds'))}"
        return f"{facts.get('function')}  {place}{called}: {what}{ended}"
    if node.kind == "subgraph":
        kind = "graph break" if facts.get("graph_break") else "graph"
        why = next(iter(str(facts.get("why")).splitlines()), "")
        place = f"{Path(str(facts.get('file'))).name}:{facts.get('line')}"
        compiled = f"{facts.get('calls')} calls, handed on in {_time(facts.get('seconds'))}"
        return f"* {kind} at {place}: {compiled}; {why}"
    if node.kind == "side effects":
        return "* changes " + "; ".join(_effect(each) for each in facts.get("effects") or ())
    return f"- line {facts.get('line')}: {facts.get('op')} {facts.get('argument') or ''}".rstrip()


def _effect(effect: Any) -> str:
    lines = ", ".join(Path(str(line)).name for line in effect.get("lines") or ())
    return f"{effect.get('object')} ({effect.get('kind')})" + (f" at {lines}" if lines else "")


def _time(seconds: Any) -> str:
    value = float(seconds or 0.0)
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.1f} ms"
