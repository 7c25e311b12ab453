"""What a program is told of its own compiles, by the collectors of an observed run in the process that asks.

How capture went (`explain(fn)(*args)`, `ExplainWithBackend`), what was compiled again (`CompileProfiler`), where time
went (`compile_times`, `record_compile_times`). A backend object listens to what is compiled with it; what is compiled
with any other backend passes through.

>>> found = explain(lambda x: x.sin() + 1)(torch.ones(2))
>>> print(str(found).splitlines()[0])
0 graph breaks; 1 graph with 2 operations captured in 1 function
>>> profiler = CompileProfiler()
>>> double = torch.compile(lambda x: x * 2, backend=profiler)
>>> double(torch.ones(2)).tolist(), double(torch.ones(3)).tolist()
([2.0, 2.0], [2.0, 2.0, 2.0])
>>> profiler.recompiles.count
1
"""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import os
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from torchsleuth.front.observe.breaks import Breaks, GraphBreak, break_lines, breaks_of
from torchsleuth.front.observe.events import Event, Shown
from torchsleuth.front.observe.profile import Profile, phase_of, profile_of
from torchsleuth.front.observe.recompiles import Recompiles, recompile_lines, recompiles_of
from torchsleuth.torch_internals import frames, hooks
from torchsleuth.torch_internals.compile_events import (
    LOOK_UP_MODULES,
    frame_times,
    listen_to_compile_events,
    step_times,
    time_look_ups,
)
from torchsleuth.torch_internals.frames import FrameCompile, hook_frame_compiles
from torchsleuth.watched.observe.captures import BreakCollector, note_frame, note_recompile
from torchsleuth.watched.observe.compiler import StepWriter


@dataclass
class EventsInMemory:
    """What the collectors write, kept here.

    >>> events = EventsInMemory()
    >>> events.write("frame", line=1)
    >>> events.kept[0].fields
    {'line': 1}
    """

    kept: list[Event] = field(default_factory=list)

    def write(self, kind: str, **fields: Any) -> None:
        self.kept.append(Event(kind, float(fields.pop("at", time.time())), os.getpid(), fields))


class Listener:
    """A backend that is told of the frames compiled with it, and of graph breaks in them, as long as it lives."""

    def __init__(self) -> None:
        self.events = EventsInMemory()
        _put_in()
        _listening.add(self)

    def on_frame(self, seen: FrameCompile) -> object:
        """A frame is compiled with this backend."""
        return seen.compile()

    def on_break(self, look: Callable[[], object]) -> None:
        """A graph breaks that would have come to this backend."""


_listening: weakref.WeakSet[Listener] = weakref.WeakSet()


@functools.cache
def _put_in() -> None:
    """The hooks are put in with the first listener and stay."""

    def on_frame(seen: FrameCompile) -> object:
        mine = next((each for each in _listening if each is seen.backend), None)
        return seen.compile() if mine is None else mine.on_frame(seen)

    def on_break(look: Callable[[], object], backend: object) -> None:
        for each in list(_listening):
            if each is backend:
                each.on_break(look)

    hook_frame_compiles(on_frame)
    frames.hook_graph_breaks(on_break)
    frames.hook_frame_refusals(on_break)


@dataclass(frozen=True, repr=False)
class ExplainOutput(Shown):
    """What capture made of the calls: the graphs, the breaks between them, guards, and the time it took.

    `print` shows it as `torchsleuth explain` does.
    """

    graphs: list[torch.fx.GraphModule]
    graph_count: int
    graph_break_count: int
    break_reasons: list[GraphBreak]
    op_count: int
    ops_per_graph: list[list[object]]
    out_guards: list[str]
    compile_times: str
    breaks: Breaks = field(repr=False)

    def __str__(self) -> str:
        return "\n".join([*break_lines(self.breaks), "", self.compile_times])


class ExplainWithBackend(Listener):
    """A backend that does what `backend` does and remembers what it was given; `output()` explains it.

    Used as

        explained = ExplainWithBackend("inductor")
        torch.compile(model, backend=explained)(x)
        print(explained.output())
    """

    def __init__(self, backend: str | Callable[..., object]) -> None:
        self.backend = hooks.lookup_backend(backend)
        self.graphs: list[torch.fx.GraphModule] = []
        self.guards: list[str] = []
        super().__init__()
        self._collector = BreakCollector(self.events)

    def __call__(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[object], **kwargs: object
    ) -> object:
        self.graphs.append(frames.copy_of_graph(gm))
        call = hooks.BackendCall(
            backend=self.backend,
            name=getattr(self.backend, "__name__", type(self.backend).__name__),
            options={},
            graph=gm,
            inputs=example_inputs,
            compile=lambda graph, inputs: hooks.settled(self.backend(graph, inputs, **kwargs)),
        )
        return self._collector.on_backend(call)

    @property
    def op_count(self) -> int:
        """How many operations were captured until now."""
        return self.output().op_count

    @property
    def break_reasons(self) -> list[GraphBreak]:
        """The graph breaks until now."""
        return self.output().break_reasons

    def output(self) -> ExplainOutput:
        """What was seen until now."""
        self._collector.write_calls()
        breaks = breaks_of(self.events.kept)
        return ExplainOutput(
            graphs=list(self.graphs),
            graph_count=breaks.graph_count,
            graph_break_count=breaks.graph_break_count,
            break_reasons=list(breaks.breaks),
            op_count=breaks.op_count,
            ops_per_graph=[
                [n.target for n in g.graph.nodes if n.op.startswith("call_")] for g in self.graphs
            ],
            out_guards=list(self.guards),
            compile_times=_compile_times(self.events.kept),
            breaks=breaks,
        )

    def on_frame(self, seen: FrameCompile) -> object:
        """A frame is compiled with this backend."""
        result = note_frame(seen, self.events, None)
        self.guards += frames.guards_of(result)
        return result

    def on_break(self, look: Callable[[], object]) -> None:
        """A graph breaks that would have come to this backend."""
        self._collector.on_break(look)


def explain(
    function: Callable[..., Any],
    *arguments: object,
    backend: str | Callable[..., Any] = "eager",
    **named: object,
) -> Any:
    """A function that calls `function` under torch.compile and explains how it was captured: `explain(f)(x).graphs`.

    Compiled code of this process is forgotten before and after, so that everything is captured anew. An exception of
    the function's own goes its way. `explain(f, x)`, as older guides have it, gives the same with a warning.
    """

    @functools.wraps(function, assigned=("__name__", "__doc__"), updated=())
    def explained(*args: object, **kwargs: object) -> ExplainOutput:
        watcher = ExplainWithBackend(backend)
        torch.compiler.reset()
        try:
            torch.compile(frames.uncompiled(function), backend=watcher)(*args, **kwargs)
            return watcher.output()
        finally:
            torch.compiler.reset()

    if arguments or named:
        hint = "explain(f, x) is the old form of torch._dynamo.explain: write explain(f)(x)"
        warnings.warn(hint, FutureWarning, stacklevel=2)
        return explained(*arguments, **named)
    return explained


def _compile_times(events: Sequence[Event]) -> str:
    compiles = [event.fields for event in events if event.kind == "frame"]
    total = sum(frame["seconds"] for frame in compiles)
    lines = [f"{frame['seconds']:8.3f} s  {frame['function']} ({frame['id']})" for frame in compiles]
    return "\n".join([f"compile time: {total:.3f} s", *lines])


class CompileProfiler(Listener):
    """Runs captured graphs as they are; what is compiled with it is counted. May be used in a `with` block, or without.

    Compiled code of before the block is forgotten, so that what is counted is all there is.
    """

    def __init__(self) -> None:
        super().__init__()
        self.graphs = 0
        self.op_count = 0

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
        self.graphs += 1
        self.op_count += sum(node.op.startswith("call_") for node in gm.graph.nodes)
        return gm.forward

    def __enter__(self) -> CompileProfiler:
        torch.compiler.reset()
        return self

    def __exit__(self, *_: object) -> None:
        torch.compiler.reset()

    @property
    def recompiles(self) -> Recompiles:
        """What was seen until now, as values."""
        return recompiles_of(self.events.kept)

    def report(self) -> str:
        """What was seen until now, for a person: per function each recompilation, its guards, limits and cures."""
        found = self.recompiles
        if not found.compiles:
            return "nothing was compiled with this profiler: torch.compile(fn, backend=profiler)"
        return "\n".join([f"{self.graphs} graphs, {self.op_count} operations", *recompile_lines(found)])

    def on_frame(self, seen: FrameCompile) -> object:
        """A frame is compiled with this backend."""
        noted = replace(seen, compile=lambda: note_recompile(seen, self.events, None))
        return note_frame(noted, self.events, None)


def compile_times(repr: Literal["str", "csv", "dict"] = "str", aggregate: bool = False) -> Any:
    """Time spent compiling in this process so far, by step and by frame; needs no preparation.

    `aggregate` adds up the times of each step, which are otherwise given one by one. A step's time holds that of the
    steps inside it; `record_compile_times` tells them apart. Of frames, torch remembers the last 64.

    >>> sorted(compile_times("dict"))
    ['frames', 'seconds', 'steps']
    """
    if repr not in ("str", "csv", "dict"):
        raise ValueError(f"repr is {repr!r}; it must be 'str', 'csv' or 'dict'")
    steps, compiles = step_times(), frame_times()
    if repr == "csv":
        return _csv(steps, aggregate)
    total = sum(frame["seconds"] for frame in compiles)
    if repr == "dict":
        by_step = {
            name: {"phase": phase_of(name), "seconds": sum(times) if aggregate else times}
            for name, times in steps.items()
        }
        return {"seconds": total, "steps": by_step, "frames": compiles}
    lines = [f"compile time: {total:.3f} s in {len(compiles)} compiles", "", "by frame"]
    for frame in compiles:
        lines.append(f"{frame['seconds']:9.3f} s  {frame['graph']:<6} {frame['function'] or 'backward'}")
    counted, ended = len(steps.get(_FRAME, ())), sum(not frame["backward"] for frame in compiles)
    since = f", of the last {counted} of {ended} compiles: a reset forgets steps" if counted < ended else ""
    lines += ["", f"by step, each with what is inside it{since}"]
    lines += [
        f"{sum(times):9.3f} s  {len(times):5d}x  {name}  [{phase_of(name) or 'other'}]"
        + ("" if aggregate else f": {', '.join(f'{seconds:.4f}' for seconds in times)}")
        for name, times in sorted(steps.items(), key=lambda item: -sum(item[1]))
    ]
    return "\n".join(lines)


# The step that is the whole compile of a frame.
_FRAME = "_compile.compile_inner"


def _csv(steps: dict[str, list[float]], aggregate: bool) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["step", "phase", "count", "seconds"])
    for name, times in steps.items():
        seconds = [sum(times)] if aggregate else times
        count = len(times) if aggregate else 1
        writer.writerows([name, phase_of(name) or "", count, f"{each:.6f}"] for each in seconds)
    return text.getvalue()


class RecordedTimes(EventsInMemory):
    """What was compiled since recording began: `recorded.profile()`."""

    def profile(self) -> Profile:
        """The compile time by phase, graph and function so far; a compile under way counts up to now."""
        return profile_of(sorted(self.kept, key=lambda event: event.at))


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
