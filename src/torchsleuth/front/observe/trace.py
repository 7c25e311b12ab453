"""The capture of a program: per frame its attempts, per attempt functions, graphs and effects, as a tree.

A terminal shows the last attempt of each frame, and all else as sums (`trace_lines`); the page of the
run shows everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchsleuth.front.observe.events import Event, Facts, ReusedIds, counted, of_events

MOST_DEPTH = 300
# What torch calls some reasons for which a graph is handed on.
_REASONS = {
    "return_value": "the function returns",
    "step_unsupported": "what follows cannot be captured from here",
    "generic_jump": "a branch depends on the value of a tensor",
}


@dataclass
class Node:
    """Something Dynamo did. `kind` is call, subgraph, side effects or instruction; `inside` what it did meanwhile.

    `facts` of a call: function, file, line, called_from, seconds, instructions, how; of a subgraph: why, graph_break,
    calls, file, line, seconds; of side effects: effects; of an instruction: op, argument, line.
    """

    kind: str
    facts: dict[str, Any]
    inside: list[Node] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        document = {"kind": self.kind, **self.facts}
        if self.inside:
            document["inside"] = [node.to_json() for node in self.inside]
        return document

    def walk(self) -> list[Node]:
        """This and everything inside it, in order."""
        return [self, *(inner for node in self.inside for inner in node.walk())]

    def total(self, name: str) -> int:
        """The sum of one fact of this and all inside it: `call.total("instructions")`."""
        return sum(int(node.facts.get(name) or 0) for node in self.walk() if node.kind == "call")


@dataclass
class TracedFrame:
    """One compile of one frame; its last attempt is the one that counts. `again` counts earlier ones of the same id."""

    graph: str
    pid: int
    again: int = 0
    function: str = "not known"
    file: str = ""
    line: int = 0
    outcome: str = "not ended"
    recompiled: bool = False
    seconds: float = 0.0
    attempts: list[Node] = field(default_factory=list)
    guards: list[Facts] = field(default_factory=list)
    guard_count: int = 0
    artefacts: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        return {
            "graph": self.graph,
            "pid": self.pid,
            "again": self.again,
            "function": self.function,
            "file": self.file,
            "line": self.line,
            "outcome": self.outcome,
            "recompiled": self.recompiled,
            "seconds": self.seconds,
            "instructions": sum(attempt.total("instructions") for attempt in self.attempts),
            "attempts": [attempt.to_json() for attempt in self.attempts],
            "guard_count": self.guard_count,
            "guards": [dict(guard) for guard in self.guards],
            "artefacts": list(self.artefacts),
        }


@dataclass(frozen=True)
class Trace:
    """The capture of a run: its frames, in the order in which their compiles began."""

    frames: tuple[TracedFrame, ...]

    def to_json(self) -> dict[str, object]:
        """The document `trace.json`."""
        return {"frames": [frame.to_json() for frame in self.frames]}


@of_events
def trace_of(events: Sequence[Event], only_known: bool = False) -> Trace:
    """The capture of a run, from what its collectors `frames` and `trace` wrote; `only_known` is for `--only`."""
    frames: list[TracedFrame] = []
    under_way: dict[tuple[int, str], TracedFrame] = {}
    ids = ReusedIds()
    calls: dict[tuple[int, int], tuple[Node, int]] = {}

    def frame_of(event: Event, name: str = "graph") -> TracedFrame:
        graph = str(event.fields.get(name))
        if (event.pid, graph) not in under_way:
            frames.append(TracedFrame(graph, event.pid, ids.again(event.pid, graph)))
            under_way[event.pid, graph] = frames[-1]
        return under_way[event.pid, graph]

    for event in events:
        ids.see(event)
        given = dict(event.fields)
        if event.kind == "trace_enter":
            number, parent = given.pop("number", None), given.pop("parent", None)
            outer, depth = calls.get((event.pid, parent), (None, 0)) if isinstance(parent, int) else (None, 0)
            facts = {**given, "how": "not ended", "seconds": 0.0, "instructions": 0}
            node = Node("call", {key: facts[key] for key in facts if key not in ("graph", "attempt")})
            if depth < MOST_DEPTH and isinstance(number, int):
                calls[event.pid, number] = (node, depth + 1)
                (frame_of(event).attempts if outer is None else outer.inside).append(node)
        elif event.kind in ("trace_leave", "trace_subgraph", "trace_side_effects", "trace_instruction"):
            number = given.pop("number", None)
            found = calls.get((event.pid, number)) if isinstance(number, int) else None
            if found is not None:
                _put(found[0], event.kind, given)
        elif event.kind == "trace_guards":
            frame = frame_of(event)
            frame.guards = [guard for guard in given.get("guards") or () if isinstance(guard, dict)]
            frame.guard_count = int(given.get("count") or len(frame.guards))
        elif event.kind == "frame":
            frame = frame_of(event, "id")
            del under_way[event.pid, frame.graph]
            frame.function, frame.file = str(given.get("function")), str(given.get("file"))
            frame.line = given["line"] if isinstance(given.get("line"), int) else 0
            frame.outcome, frame.recompiled = str(given.get("outcome")), bool(given.get("recompiled"))
            frame.seconds = float(given.get("seconds") or 0.0)
    for frame in under_way.values():  # its process died in it
        facts = frame.attempts[0].facts if frame.attempts else {}
        frame.function, frame.file = str(facts.get("function")), str(facts.get("file"))
        frame.line = facts["line"] if isinstance(facts.get("line"), int) else 0
    unknown = {id(frame) for frame in under_way.values()}
    return Trace(tuple(frame for frame in frames if not only_known or id(frame) not in unknown))


def _put(call: Node, kind: str, facts: dict[str, Any]) -> None:
    facts = {key: value for key, value in facts.items() if key not in ("graph", "attempt")}
    if kind == "trace_leave":
        call.facts.update(facts)
    elif kind == "trace_side_effects":
        # The code that writes them back is made twice; the last is the one that stays.
        call.inside[:] = [node for node in call.inside if node.kind != "side effects"]
        call.inside.append(Node("side effects", facts))
    elif kind == "trace_subgraph":
        why = str(facts.get("why"))
        call.inside.append(Node("subgraph", {**facts, "why": _REASONS.get(why.partition(" ")[0], why)}))
    else:
        call.inside.append(Node(kind.removeprefix("trace_"), facts))


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
        yield f"... and {len(frames) - MOST_FRAMES} more frames: see index.html and trace.json"


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
            lines.append(f"  ... and {len(tree) - MOST_LINES} more lines: see index.html and trace.json")
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


def _effect(effect: Facts) -> str:
    lines = ", ".join(Path(str(line)).name for line in effect.get("lines") or ())
    return f"{effect.get('object')} ({effect.get('kind')})" + (f" at {lines}" if lines else "")


def _time(seconds: float | None) -> str:
    value = float(seconds or 0.0)
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.1f} ms"
