"""Graph breaks of a run: each one once, what it costs, why it is there and what to do, from the events of `breaks`.

One line that cannot be captured may cut several functions: the one it stands in, and each compiled function that would
have inlined it. That is one break here; the functions it cuts are listed with it. `break_lines` shows them to a person,
in a terminal and as `str(explain(fn)(x))`.
"""

from __future__ import annotations

import re
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from torchsleuth.front.observe.break_reasons import ANOTHER, BreakReason, reason_of
from torchsleuth.front.observe.events import Event, Facts, Shown, counted, of_events

_RESUMED = re.compile(r"torch_dynamo_resume_in_(.*)_at_\d+")
# Process, and number of the frame that it compiled.
Compile = tuple[int, int]


@dataclass(frozen=True)
class Place:
    """A line of a program: `Place("model.py", 12, "forward", "y = x.item()")`."""

    file: str
    line: int
    function: str = ""
    code: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Tried:
    """A run of the program with something changed: what there is to count, and limits reached, before and after.

    `left` are the causes that it still met; `paste` is what a person writes; `why_not` says why the run tells nothing.
    """

    how: str
    before: int
    after: int
    limits_before: int = 0
    limits_after: int = 0
    left: tuple[str, ...] = ()
    why_not: str = ""
    paste: tuple[str, ...] = ()
    counted: str = "recompilations"

    @property
    def helped(self) -> bool:
        """Fewer are left; a limit that is not reached any more lets no more of them through.

        >>> Tried("dynamic=True", 7, 7, 1, 1).helped, Tried("dynamic=True", 7, 3).helped
        (False, True)
        """
        better = (self.limits_after, self.after) < (self.limits_before, self.before)
        return not self.why_not and better and self.limits_after <= self.limits_before

    @property
    def numbers(self) -> str:
        limits = f", limits reached {self.limits_before} → {self.limits_after}" if self.limits_before else ""
        return f"{self.counted} {self.before} → {self.after}{limits}"

    def __str__(self) -> str:
        if self.why_not:
            return f"{self.how}: {self.why_not}"
        return f"{self.how}: {self.numbers}" + (f"; left: {', '.join(self.left)}" if self.left else "")

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "helped": self.helped}


def best_of(tried: Sequence[Tried]) -> Tried | None:
    """The one to recommend: it leaves the fewest, and asks for the least.

    >>> best_of([Tried("a", 7, 3, paste=("a",)), Tried("a and b", 7, 3, paste=("a", "b")), Tried("c", 7, 7)]).how
    'a'
    """
    helped = [each for each in tried if each.helped]
    return min(helped, key=lambda each: (each.limits_after, each.after, len(each.paste)), default=None)


def tried_lines(tried: Sequence[Tried]) -> Iterator[str]:
    """What was tried, what helped first, and at the end the one to do."""
    if not tried:
        return
    yield ""
    yield "tried, each in a run of its own:"
    for each in sorted(tried, key=lambda each: (not each.helped, each.limits_after, each.after)):
        yield f"   {'helps ' if each.helped else 'no    '}  {each}"
    best = best_of(tried)
    if best is None:
        yield "what to do: none of these helps; the ideas above change the program's text, and were not tried"
    elif best.paste:
        yield ""
        yield f"what to do (tried: {best.numbers}):"
        yield from (f"   {line}" for line in best.paste)


@dataclass(frozen=True)
class GraphBreak:
    """A line at which capture stops. `stack` leads from the program to it; `functions` are the compiled ones it cuts.

    `skipped` of them are run by Python as a whole. `compiles` counts how often the compiler met it, `runs` how often
    the program passed it. `ops_before` and `ops_after` are the operations of the graphs on both sides. Where it is
    `fatal`, the program asked for whole graphs and got an error. `cured` says whether it was gone in a run with the
    lines to paste; None where that was not tried.
    """

    place: Place
    type: str
    number: str | None
    reason: BreakReason
    stack: tuple[Place, ...]
    functions: tuple[str, ...]
    skipped: tuple[str, ...]
    compiles: int
    runs: int
    ops_before: int
    ops_after: int
    fatal: bool = False
    cured: bool | None = None

    @property
    def gain(self) -> str:
        """What its removal would give."""
        if self.fatal:
            return "the program goes on: with fullgraph=True a graph break is an error"
        if self.skipped:
            whole = ", ".join(f"`{name}`" for name in self.skipped)
            lost = f" ({counted(self.ops_before, 'operation')} captured in vain)" if self.ops_before else ""
            return f"{whole} would be compiled; now all of it runs in Python{lost}"
        way = f"detour through Python, taken {counted(self.runs, 'time')} in this run"
        if self.ops_before and self.ops_after:
            whole = f"{self.ops_before} + {self.ops_after} operations"
            return f"{whole} in one graph instead of two, without the {way}"
        side = "before" if self.ops_after else "after"
        return f"saves the {way}; no graph is split, as there are no operations {side} it"

    @property
    def came(self) -> str:
        """What came of the lines to paste."""
        told = {
            None: "not tried",
            True: "tried: this break is gone",
            False: "tried: it still breaks here",
        }
        return told[self.cured]

    @property
    def cost(self) -> tuple[bool, int]:
        """To rank by: functions that lose the compiler first, then operations behind the break, each time it is run."""
        return bool(self.skipped), self.runs * (1 + self.ops_after)

    @property
    def user_stack(self) -> traceback.StackSummary:
        """`stack` as the traceback module has it."""
        frames = [traceback.FrameSummary(p.file, p.line, p.function, line=p.code) for p in self.stack]
        return traceback.StackSummary.from_list(frames)

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "gain": self.gain}


@dataclass(frozen=True)
class CapturedGraph:
    """A graph that went to a backend: its operations, the function it is from, and how often it was run."""

    function: str
    place: Place
    ops: tuple[str, ...]
    backend: str
    calls: int
    recompiled: bool
    seconds: float


@dataclass(frozen=True, repr=False)
class Breaks(Shown):
    """What a run shows about graph breaks: the breaks, dearest first, and the graphs between them."""

    breaks: tuple[GraphBreak, ...]
    graphs: tuple[CapturedGraph, ...]
    functions: int
    recompilations: int
    tried: tuple[Tried, ...] = ()

    def __str__(self) -> str:
        return "\n".join(break_lines(self))

    @property
    def graph_count(self) -> int:
        return len(self.graphs)

    @property
    def graph_break_count(self) -> int:
        return len(self.breaks)

    @property
    def op_count(self) -> int:
        return sum(len(graph.ops) for graph in self.graphs)

    def to_json(self) -> dict[str, object]:
        return {
            "graph_count": self.graph_count,
            "graph_break_count": self.graph_break_count,
            "op_count": self.op_count,
            "functions": self.functions,
            "recompilations": self.recompilations,
            "breaks": [each.to_json() for each in self.breaks],
            "graphs": [asdict(graph) for graph in self.graphs],
            "tried": [each.to_json() for each in self.tried],
        }


@of_events
def breaks_of(events: Sequence[Event]) -> Breaks:
    """The graph breaks in these events.

    >>> breaks_of([]).graph_break_count
    0
    """
    frames = {(e.pid, e.fields["frame"]): e.fields for e in events if e.kind == "frame"}
    calls: dict[tuple[int, int], int] = {}
    for event in events:
        if event.kind == "calls":
            calls[event.pid, event.fields["graph"]] = event.fields["count"]
    graphs: dict[Compile, list[tuple[CapturedGraph, str]]] = defaultdict(list)
    for event in events:
        if event.kind == "graph" and (event.pid, event.fields["frame"]) in frames:
            frame = frames[event.pid, event.fields["frame"]]
            count = calls.get((event.pid, event.fields["graph"]), 0)
            graphs[event.pid, event.fields["frame"]].append(
                (_graph(frame, event.fields, count), frame["code"])
            )
    found = [_break(group, graphs) for group in _alike(_causes(events))]
    return Breaks(
        breaks=tuple(sorted(found, key=lambda each: each.cost, reverse=True)),
        graphs=tuple(graph for several in graphs.values() for graph, _ in several),
        functions=len({(f["file"], f["line"], f["function"]) for f in frames.values()}),
        recompilations=sum(f["recompiled"] and f["outcome"] == "compiled" for f in frames.values()),
    )


def _graph(frame: Facts, fields: Facts, calls: int) -> CapturedGraph:
    return CapturedGraph(
        function=frame["function"],
        place=Place(frame["file"], frame["line"], frame["function"]),
        ops=tuple(fields["ops"]),
        backend=fields["backend"],
        calls=calls,
        recompiled=frame["recompiled"],
        seconds=fields["seconds"],
    )


def _causes(events: Sequence[Event]) -> list[Event]:
    """One break per compile: what Dynamo runs into while it handles that one is why it cannot go on."""
    found: dict[object, Event] = {}
    for event in events:
        if event.kind != "break":
            continue
        frame = event.fields["frame"]
        key = (event.pid, frame) if frame is not None else (event.pid, None, len(found))
        first = found.get(key)
        if first is None:
            found[key] = event
        elif first.fields["resumes"] and not event.fields["resumes"]:
            text = f"{first.fields['text']}\n{ANOTHER}\n{event.fields['text']}"
            found[key] = replace(first, fields={**first.fields, "resumes": False, "text": text})
    return list(found.values())


def _alike(events: Sequence[Event]) -> list[list[Event]]:
    """The events of each break: the same line and reason.

    Seen from a function that inlines it, the column is not known.
    """
    columns: dict[tuple[object, ...], list[object]] = defaultdict(list)
    groups: dict[tuple[object, ...], list[Event]] = defaultdict(list)
    for event in sorted(events, key=lambda e: e.fields["column"] is None):
        place = _innermost(event.fields["stack"])
        key = (place.file, place.line, event.fields["type"])
        column = event.fields["column"]
        if column is None and columns[key]:
            column = columns[key][0]
        columns[key].append(column)
        groups[*key, column].append(event)
    return sorted(groups.values(), key=lambda group: min(event.at for event in group))


def _break(
    group: Sequence[Event],
    graphs: Mapping[Compile, Sequence[tuple[CapturedGraph, str]]],
) -> GraphBreak:
    """What the events of one break, met in several functions and compiles, say together."""
    before: dict[str, int] = defaultdict(int)
    after: dict[str, int] = defaultdict(int)
    runs: dict[str, int] = defaultdict(int)
    for event in group:
        fields, function = event.fields, event.fields["function"]
        here = graphs.get((event.pid, fields["frame"]), ()) if fields["resumes"] else ()
        size = sum(len(g.ops) for g, _ in here) if here else fields["traced"]
        before[function] = max(before[function], size)
        rest = [
            graph
            for compile_, several in graphs.items()
            for graph, code in several
            if compile_[0] == event.pid
            and code == _name_of_rest(fields)
            and graph.place.file == fields["file"]
        ]
        after[function] = max([after[function], *(len(graph.ops) for graph in rest)])
        passed = sum(g.calls for g, _ in here)
        runs[function] += passed
        if not here:  # nothing to count before it, so what comes after it
            runs[function] = max(runs[function], sum(g.calls for g in rest))
    first = max(group, key=lambda e: len(e.fields["stack"]))
    fields = first.fields
    kind = fields["type"]
    return GraphBreak(
        place=_innermost(fields["stack"]),
        type=kind,
        number=fields["number"],
        reason=reason_of(kind, fields["text"], fields["hints"], _innermost(fields["stack"]).code),
        stack=_places([*fields["above"], *fields["stack"]]),
        functions=tuple(dict.fromkeys(e.fields["function"] for e in group)),
        skipped=tuple(dict.fromkeys(e.fields["function"] for e in group if not e.fields["resumes"])),
        compiles=len(group),
        runs=max(1, *runs.values()),
        ops_before=sum(before.values()),
        ops_after=sum(after.values()),
        fatal=any(event.fields["fatal"] for event in group),
    )


def _name_of_rest(fields: Facts) -> str:
    """What Dynamo calls the rest of a function after this break."""
    match = _RESUMED.fullmatch(fields["code"])
    return f"torch_dynamo_resume_in_{match[1] if match else fields['code']}_at_{fields['line']}"


def _innermost(stack: Sequence[Facts]) -> Place:
    """The last line of a stack that is not torch's own."""
    own = [frame for frame in stack if not frame["library"]]
    return _places((own or list(stack))[-1:])[0]


def _places(stack: Sequence[Facts]) -> tuple[Place, ...]:
    """The stack as a person knows it: without libraries, and the rest of a function after a break is that function."""
    found: list[Place] = []
    for frame in [frame for frame in stack if not frame["library"]] or stack:
        match = _RESUMED.fullmatch(frame["function"])
        name = match[1] if match else frame["function"]
        if found and match and found[-1].function == name and found[-1].file == frame["file"]:
            found.pop()
        found.append(Place(frame["file"], frame["line"], name, frame["code"]))
    return tuple(found)


# A stack of a deep model is long; the calls next to the break are the ones to look at.
MOST_STACK = 6


def break_lines(found: Breaks, shorten: Callable[[str], str] = str) -> Iterator[str]:
    """The lines to show; `shorten` makes paths shorter."""
    yield _headline(found)
    for number, each in enumerate(found.breaks, 1):
        yield ""
        yield from _one(number, each, shorten)
    yield from tried_lines(found.tried)


def _headline(found: Breaks) -> str:
    again = f" (with {counted(found.recompilations, 'recompilation')})" if found.recompilations else ""
    return (
        f"{counted(found.graph_break_count, 'graph break')}; {counted(found.graph_count, 'graph')} with "
        f"{counted(found.op_count, 'operation')} captured in {counted(found.functions, 'function')}{again}"
    )


def _one(number: int, each: GraphBreak, shorten: Callable[[str], str]) -> Iterator[str]:
    gb = f"  [{each.number}]" if each.number else ""
    yield f"{number}. {shorten(each.place.file)}:{each.place.line} in {each.place.function}{gb}"
    if each.place.code:
        yield f"       {each.place.code}"
    yield f"   why     {each.reason.why}"
    if each.reason.because:
        yield f"           and {each.reason.because}"
    if each.reason.fix:
        yield f"   idea    {each.reason.fix}"
    for position, line in enumerate(each.reason.paste):
        yield f"   {'' if position else 'paste':7} {line}"
    if each.reason.paste:
        yield f"           ({each.came})"
    yield f"   gain    {each.gain}"
    others = [name for name in each.functions if name.rpartition(".")[2] != each.place.function]
    if others:
        yield f"   cuts    {', '.join(each.functions)}"
    if each.compiles > 1:
        yield f"   met     in {each.compiles} compiles"
    calls = each.stack[:-1][-MOST_STACK:]
    for position, place in enumerate(calls):
        head = "called  " if position == 0 else "        "
        yield f"   {head}{shorten(place.file)}:{place.line} in {place.function}: {place.code}"
