"""`explain(fn)(*args)` and `ExplainWithBackend`: the collectors of an observed run, in the process that asks.

>>> import torchsleuth
>>> print(torchsleuth.explain(model)(x))
1 graph break; 2 graphs with 5 operations captured in 1 function
...
"""

from __future__ import annotations

import functools
import os
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchsleuth.explain.break_text import break_lines
from torchsleuth.explain.breaks import Breaks, GraphBreak, breaks_of
from torchsleuth.explain.events import Event
from torchsleuth.torch_internals import frame_compiles, graph_breaks, hooks
from torchsleuth.watched.observe.breaks import BreakCollector
from torchsleuth.watched.observe.frames import note_frame


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


@dataclass
class EventsInMemory:
    """What the collectors write, kept here: `EventsInMemory().write("frame", line=1)`."""

    kept: list[Event] = field(default_factory=list)

    def write(self, kind: str, **fields: Any) -> None:
        self.kept.append(Event(kind, time.time(), os.getpid(), fields))


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
        _listen()
        _listening.add(self)

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
        self.graphs.append(frame_compiles.copy_of_graph(gm))
        call = hooks.BackendCall(
            backend=self.backend,
            name=getattr(self.backend, "__name__", type(self.backend).__name__),
            options={},
            graph=gm,
            inputs=example_inputs,
            compile=lambda graph, inputs: self.backend(graph, inputs, **kwargs),
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

    def _on_frame(self, seen: frame_compiles.FrameCompile) -> Any:
        result = note_frame(seen, self.events, None)
        self.guards += frame_compiles.guards_of(result)
        return result


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
            torch.compile(frame_compiles.uncompiled(function), backend=watcher)(*args, **kwargs)
            return watcher.output()
        finally:
            torch.compiler.reset()

    return explained


# Those that want to hear of the compiles of this process; the hooks are put in with the first and stay.
_listening: weakref.WeakSet[ExplainWithBackend] = weakref.WeakSet()


@functools.cache
def _listen() -> None:
    def on_frame(seen: frame_compiles.FrameCompile) -> Any:
        mine = next((each for each in _listening if each is seen.backend), None)
        return seen.compile() if mine is None else mine._on_frame(seen)

    def on_break(look: Callable[[], Any], backend: Any) -> None:
        for each in _listening:
            if each is backend:
                each._collector.on_break(look)

    frame_compiles.hook_frame_compiles(on_frame)
    graph_breaks.hook_graph_breaks(on_break)
    graph_breaks.hook_frame_refusals(on_break)


def _compile_times(events: Sequence[Event]) -> str:
    frames = [event.fields for event in events if event.kind == "frame"]
    total = sum(frame["seconds"] for frame in frames)
    lines = [f"{frame['seconds']:8.3f} s  {frame['function']} ({frame['id']})" for frame in frames]
    return "\n".join([f"compile time: {total:.3f} s", *lines])
