"""The collector of graph breaks: each break, each graph that was captured, and how often each graph is run.

A graph's calls are counted, because a break costs each time it is passed; a count is written whenever it has doubled,
so that a process that is killed has told it to within a factor of two.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torchsleuth.torch_internals import module_names
from torchsleuth.watched.observe.events import EventWriter, harmless
from torchsleuth.watched.observe.frames import frame_under_way, wanted
from torchsleuth.watched.startup import after_import
from torchsleuth.watched.watch_settings import Settings


def install(settings: Settings, events: EventWriter) -> None:
    """Waits for the parts of Dynamo, then writes `break`, `graph` and `calls` events."""
    collector = BreakCollector(events, settings.only)

    def at_capture(_module: ModuleType) -> None:
        from torchsleuth.torch_internals.frames import hook_frame_refusals

        hook_frame_refusals(collector.on_break)

    def at_tracer(_module: ModuleType) -> None:
        from torchsleuth.torch_internals.frames import hook_graph_breaks

        hook_graph_breaks(collector.on_break)

    def at_backend(_module: ModuleType) -> None:
        from torchsleuth.torch_internals.hooks import hook_backend_calls

        hook_backend_calls(collector.on_backend)

    after_import(module_names.FRAME_CAPTURE, at_capture)
    after_import(module_names.TRACER, at_tracer)
    after_import(module_names.BACKEND_CALL, at_backend)
    atexit.register(collector.write_calls)


class BreakCollector:
    """What one process saw of breaks and graphs; `events` is anything with `write(kind, **fields)`."""

    def __init__(self, events: Any, only: str | None = None) -> None:
        self.events = events
        self.only = only
        self.counts: list[int] = []
        self._seen: set[tuple[Any, ...]] = set()

    def on_break(self, look: Callable[[], Any], _backend: Any = None) -> None:
        """Writes a break, once for each compile: analysis that starts over meets it again."""
        with harmless(self.events):
            seen, frame = look(), frame_under_way()
            key = (frame, seen.type, seen.file, seen.line, seen.column)
            if wanted(seen.function, self.only) and (frame is None or key not in self._seen):
                self._seen.add(key)
                self.events.write("break", frame=frame, **dataclasses.asdict(seen))

    def on_backend(self, call: Any) -> Callable[..., Any]:
        """Lets a backend compile one graph, and counts the calls of what it gives."""
        from torchsleuth.torch_internals.hooks import target_name

        ops: list[str] = []
        with harmless(self.events):  # now, because the backend takes the graph over and changes it
            ops += [target_name(n) for n in call.graph.graph.nodes if n.op.startswith("call_")]
        frame, started = frame_under_way(), time.perf_counter()
        compiled = call.as_without_us()
        seconds = round(time.perf_counter() - started, 6)
        number = len(self.counts)
        self.counts.append(0)
        self.events.write("graph", frame=frame, graph=number, ops=ops, backend=call.name, seconds=seconds)
        return self._counted(compiled, number)

    def _counted(self, compiled: Callable[..., Any], number: int) -> Callable[..., Any]:
        counts = self.counts

        def call(*args: Any) -> Any:
            counts[number] += 1
            count = counts[number]
            if count & (count - 1) == 0:
                self.events.write("calls", graph=number, count=count)
            return compiled(*args)

        # What torch reads from the backend's result it must find on ours; plain methods carry no dict.
        functools.update_wrapper(
            call, compiled, updated=("__dict__",) if hasattr(compiled, "__dict__") else ()
        )
        return call

    def write_calls(self) -> None:
        """The counts as they are now, for those that were not just written."""
        for number, count in enumerate(self.counts):
            if count & (count - 1):
                self.events.write("calls", graph=number, count=count)
