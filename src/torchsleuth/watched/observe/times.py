"""Compile time: each step of the compiler as it begins and ends, and what caches answered.

Events: `step_begin` and `step_end` (name, thread, graph), `cache` (name, graph, answer). The steps of one thread are
nested; one that never ends was under way when the process died.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from torchsleuth.core.watching import Settings
from torchsleuth.torch_internals import module_names
from torchsleuth.watched.observe.events import Events
from torchsleuth.watched.startup import after_import

if TYPE_CHECKING:
    from torchsleuth.torch_internals.compile_events import CompileEvent

# There are hundreds of passes for each graph, most of which find nothing: only those that take time are written.
PASS_PREFIX = "pass."
LEAST_PASS_SECONDS = 0.001


def install_times(_settings: Settings, events: Events) -> None:
    """Writes what torch says about its compile time."""
    steps = StepWriter(events)

    def listen(_module: ModuleType) -> None:
        from torchsleuth.torch_internals.compile_events import listen_to_compile_events

        listen_to_compile_events(steps.event)

    def look_ups(module: ModuleType) -> None:
        from torchsleuth.torch_internals.compile_events import time_look_ups

        time_look_ups(module.__name__, steps.event)

    after_import(module_names.TIMED_STEPS, listen)
    after_import(module_names.GRAPH_CACHE, look_ups)
    after_import(module_names.INDUCTOR_CACHE, look_ups)


class StepWriter:
    """Writes compile events as `step_begin`, `step_end` and `cache`."""

    def __init__(self, events: Events) -> None:
        self.write = events.write
        self.passes: dict[int, list[CompileEvent]] = {}

    def event(self, event: CompileEvent) -> None:
        """One step begins or ends, or a cache has answered."""
        if event.kind == "mark":
            if "cache_state" in event.facts:
                facts = {"name": event.name, "graph": event.graph, "answer": event.facts["cache_state"]}
                self.write("cache", at=event.time, **facts)
        elif event.name.startswith(PASS_PREFIX):
            self._pass(event)
        else:
            self._step(event)

    def _pass(self, event: CompileEvent) -> None:
        """A pass is written when it has ended, so that one that took no time is not."""
        begun = self.passes.setdefault(event.thread, [])
        if event.kind == "begin":
            begun.append(event)
        elif begun:
            beginning = begun.pop()
            if event.time - beginning.time >= LEAST_PASS_SECONDS:
                self._step(beginning)
                self._step(event)

    def _step(self, event: CompileEvent) -> None:
        facts = {"name": event.name, "thread": event.thread, "graph": event.graph}
        if event.kind == "end":
            self.write("step_end", at=event.time, **facts)
        else:
            backward = event.facts.get("is_backward")
            self.write("step_begin", at=event.time, **facts, function=event.function, backward=backward)
