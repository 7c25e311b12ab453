"""What a program is told of its own compiles: `explain(fn)(*args)`, `ExplainWithBackend` and `CompileProfiler`.

The collectors of an observed run, in the process that asks. A backend object listens to what is compiled with it; what
is compiled with any other backend passes through.

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

import functools
import os
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from torchsleuth.front.observe.breaks import Breaks, GraphBreak, break_lines, breaks_of
from torchsleuth.front.observe.events import Event
from torchsleuth.front.observe.recompiles import Recompiles, recompile_lines, recompiles_of
from torchsleuth.torch_internals import frames, hooks
from torchsleuth.torch_internals.frames import FrameCompile
from torchsleuth.watched.observe.captures import BreakCollector, note_frame, note_recompile


@dataclass(frozen=True)
class ExplainOutput:
    """What capture made of the calls: the graphs, the breaks between them, guards, and the time it took.

    `print` shows it as `torchsleuth explain` does.
    """

    graphs: list[torch.fx.GraphModule]
    graph_count: int
    graph_break_count: int
    break_reasons: list[GraphBreak]
    op_count: int
    ops_per_graph: list[list[Any]]
    out_guards: list[str]
    compile_times: str
    breaks: Breaks = field(repr=False)

    def __str__(self) -> str:
        return "\n".join([*break_lines(self.breaks), "", self.compile_times])


class ExplainWithBackend:
    """A backend that does what `backend` does and remembers what it was given; `output()` explains it.

    Used as

        explained = ExplainWithBackend("inductor")
        torch.compile(model, backend=explained)(x)
        print(explained.output())
    """

    def __init__(self, backend: str | Callable[..., Any]) -> None:
        self.backend = hooks.lookup_backend(backend)
        self.graphs: list[torch.fx.GraphModule] = []
        self.guards: list[str] = []
        self.events = EventsInMemory()
        self._collector = BreakCollector(self.events)
        listen(self)

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
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

    def on_frame(self, seen: frames.FrameCompile) -> Any:
        """A frame is compiled with this backend."""
        result = note_frame(seen, self.events, None)
        self.guards += frames.guards_of(result)
        return result

    def on_break(self, look: Callable[[], Any]) -> None:
        """A graph breaks that would have come to this backend."""
        self._collector.on_break(look)


def explain(
    function: Callable[..., Any], *, backend: str | Callable[..., Any] = "eager"
) -> Callable[..., ExplainOutput]:
    """A function that calls `function` under torch.compile and explains how it was captured: `explain(f)(x).graphs`.

    Compiled code of this process is forgotten before and after, so that everything is captured anew. An exception of
    the function's own goes its way.
    """

    @functools.wraps(function, assigned=("__name__", "__doc__"), updated=())
    def explained(*args: Any, **kwargs: Any) -> ExplainOutput:
        watcher = ExplainWithBackend(backend)
        torch.compiler.reset()
        try:
            torch.compile(frames.uncompiled(function), backend=watcher)(*args, **kwargs)
            return watcher.output()
        finally:
            torch.compiler.reset()

    return explained


def _compile_times(events: Sequence[Event]) -> str:
    frames = [event.fields for event in events if event.kind == "frame"]
    total = sum(frame["seconds"] for frame in frames)
    lines = [f"{frame['seconds']:8.3f} s  {frame['function']} ({frame['id']})" for frame in frames]
    return "\n".join([f"compile time: {total:.3f} s", *lines])


class CompileProfiler:
    """Runs captured graphs as they are; what is compiled with it is counted. May be used in a `with` block, or without.

    Compiled code of before the block is forgotten, so that what is counted is all there is.
    """

    def __init__(self) -> None:
        self.graphs = 0
        self.op_count = 0
        self.events = EventsInMemory()
        listen(self)

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
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

    def on_frame(self, seen: FrameCompile) -> Any:
        """A frame is compiled with this backend."""
        noted = replace(seen, compile=lambda: note_recompile(seen, self.events, None))
        return note_frame(noted, self.events, None)

    def on_break(self, look: Callable[[], Any]) -> None:
        """Graph breaks are `ExplainWithBackend`'s to tell."""


class Listener(Protocol):
    """A backend that wants to hear of frames compiled with it, and of graph breaks in them."""

    def on_frame(self, seen: frames.FrameCompile) -> Any: ...

    def on_break(self, look: Callable[[], Any]) -> None: ...


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
        self.kept.append(Event(kind, time.time(), os.getpid(), fields))


_listening: weakref.WeakSet[Any] = weakref.WeakSet()


def listen(listener: Listener) -> None:
    """Tells `listener` of the compiles made with it, as long as it lives: `listen(self)`."""
    _put_in()
    _listening.add(listener)


@functools.cache
def _put_in() -> None:
    def on_frame(seen: frames.FrameCompile) -> Any:
        mine = next((each for each in _listening if each is seen.backend), None)
        return seen.compile() if mine is None else mine.on_frame(seen)

    def on_break(look: Callable[[], Any], backend: Any) -> None:
        for each in list(_listening):
            if each is backend:
                each.on_break(look)

    frames.hook_frame_compiles(on_frame)
    frames.hook_graph_breaks(on_break)
    frames.hook_frame_refusals(on_break)
