"""What the compiler says about itself: its log, every stage of every graph as text, and the time of each of its steps.

Texts go to files of the spool. For each artefact of the debug folder there is an event `artefact`. Runnable graphs are
not written here: the watch keeps a record of each graph, and the front makes scripts of those.

Steps are events: `step_begin` and `step_end` (name, thread, graph), `cache` (name, graph, answer). Those of one thread
are nested; one that never ends was under way when the process died.
"""

from __future__ import annotations

import contextlib
import dis
import io
import os
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torchsleuth.core.watching import ARTEFACTS_VARIABLE, LOG_VARIABLE, TORCH_TRACE, Settings
from torchsleuth.torch_internals import module_names
from torchsleuth.watched.observe.captures import at_frame_compiles
from torchsleuth.watched.observe.events import BoundedFile, Events
from torchsleuth.watched.startup import after_import

if TYPE_CHECKING:
    from torchsleuth.torch_internals.compile_events import CompileEvent
    from torchsleuth.torch_internals.frames import FrameCompile
    from torchsleuth.torch_internals.hooks import InnerCompile


CUT = "[torchsleuth: this file has reached its bound, the rest is left out]\n"
# Kinds of artefacts that a person can switch -> what belongs to them.
KINDS = {
    "graphs": ("captured", "joint", "forward-graph", "backward-graph", "inference-graph", "transformed"),
    "bytecode": ("bytecode", "new-bytecode"),
    "ir": ("ir-before-fusion", "ir-after-fusion"),
    "code": ("code",),
    "profile": ("compile-profile",),
}
# All artefacts of one process, and one of them.
MOST_BYTES = 256 << 20
MOST_ONE = 16 << 20
PROFILED_FUNCTIONS = 60


def install_logs(settings: Settings, _events: Events) -> None:
    """Waits for torch's loggers and then writes what those parts log that TORCHSLEUTH_LOG names."""

    def put_in(_module: ModuleType) -> None:
        from torchsleuth.torch_internals.compile_events import listen_to_logs

        file = BoundedFile(settings.spool, "compiler-{pid}.log", last_line=lambda: CUT)
        listen_to_logs(_named_in(LOG_VARIABLE), file.write)

    after_import(module_names.LOGGING, put_in)


def _named_in(variable: str) -> list[str]:
    return [name for name in os.environ.get(variable, "").split(",") if name]


def install_artefacts(settings: Settings, events: Events) -> None:
    """Waits for each part of the compiler and then writes down what it makes of the kinds in TORCHSLEUTH_ARTEFACTS."""
    names = _named_in(ARTEFACTS_VARIABLE)
    artefacts = _Artefacts(
        settings.spool, events, frozenset(k for name in names for k in KINDS.get(name, ()))
    )

    def trace(_module: ModuleType) -> None:
        from torchsleuth.torch_internals.compile_events import listen_to_structured_trace

        lines = BoundedFile(settings.spool, "torch-trace-{pid}.log")
        listen_to_structured_trace(
            lambda entry: artefacts.keep(entry.what, entry.text, graph=entry.graph, attempt=entry.attempt),
            lines.write if TORCH_TRACE in names else None,
        )

    def fusion(_module: ModuleType) -> None:
        from torchsleuth.torch_internals.compile_events import hook_fusion

        hook_fusion(lambda when, text: artefacts.keep(f"ir-{when}-fusion", text))

    def inner(_module: ModuleType) -> None:
        from torchsleuth.torch_internals.hooks import hook_inner_compiles

        hook_inner_compiles(artefacts.compile)

    after_import(module_names.LOGGING, trace)
    at_frame_compiles(artefacts.frame)
    after_import(module_names.FUSION, fusion)
    after_import(module_names.INNER_COMPILE, inner)


class _Artefacts:
    """What of the graph under way is kept; `direction` is that of the graph in Inductor's hands."""

    def __init__(self, spool: str, events: Events, wanted: frozenset[str]) -> None:
        self.spool, self.events, self.wanted = spool, events, wanted
        self.written = self.number = 0
        self.direction: str | None = None

    def frame(self, seen: FrameCompile) -> Any:
        """One frame is compiled: its bytecode, and what runs instead."""
        from torchsleuth.torch_internals.frames import compiled_code

        result = None
        try:
            result = seen.compile()
            return result
        finally:
            with contextlib.suppress(Exception):
                for what, code in (("bytecode", seen.code), ("new-bytecode", compiled_code(result))):
                    if code is not None:
                        self.keep(what, dis.Bytecode(code).dis(), graph=seen.compile_id)

    def keep(self, what: str, text: str, **facts: Any) -> None:
        """Writes one artefact, unless it is not wanted or there is too much already; never raises."""
        if what not in self.wanted:
            return
        size = len(text)
        if size > MOST_ONE or self.written + size > MOST_BYTES:
            self.events.write("artefact_left_out", what=what, bytes=size, **self._where(facts))
            return
        folder = Path(self.spool) / f"artefacts-{os.getpid()}"
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            self.number += 1
            name = f"{self.number}.txt"
            (folder / name).write_text(text, encoding="utf-8", errors="backslashreplace")
            self.written += size
            self.events.write("artefact", what=what, file=f"{folder.name}/{name}", **self._where(facts))

    def _where(self, facts: dict[str, Any]) -> dict[str, Any]:
        from torchsleuth.torch_internals.hooks import current_compile_id

        graph = facts.get("graph") or current_compile_id()
        return {**facts, "graph": graph, "direction": self.direction}

    def compile(self, call: InnerCompile) -> Any:
        """One graph in Inductor's hands."""
        forward = "inference" if call.kwargs.get("is_inference") else "forward"
        before = self.direction
        self.direction = "backward" if call.kwargs.get("is_backward") else forward
        try:
            return self._profiled(call) if "compile-profile" in self.wanted else call.as_without_us()
        finally:
            self.direction = before

    def _profiled(self, call: InnerCompile) -> Any:
        import cProfile
        import pstats

        profiler = cProfile.Profile()
        try:
            profiler.enable()
        except ValueError:  # another profiler is at work
            return call.as_without_us()
        try:
            return call.as_without_us()
        finally:
            profiler.disable()
            text = io.StringIO()
            with contextlib.suppress(Exception):
                pstats.Stats(profiler, stream=text).sort_stats("cumulative").print_stats(PROFILED_FUNCTIONS)
            self.keep("compile-profile", text.getvalue())


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


def install_cuda_graphs(_settings: Settings, events: Events) -> None:
    """Writes each recording of a CUDA graph, and each graph that runs without one, with the reason."""

    def left_out(_module: ModuleType) -> None:
        from torchsleuth.torch_internals.compile_events import hook_cuda_graphs_left_out
        from torchsleuth.torch_internals.hooks import current_compile_id

        hook_cuda_graphs_left_out(
            lambda why: events.write("cuda_graph_left_out", graph=current_compile_id(), why=why)
        )

    def recorded(_module: ModuleType) -> None:
        from torchsleuth.torch_internals.compile_events import hook_recorded_cuda_graphs

        hook_recorded_cuda_graphs(
            lambda number, graph, why: events.write("cuda_graph", number=number, graph=graph, why=why)
        )

    after_import(module_names.CUDA_GRAPHS_LEFT_OUT, left_out)
    after_import(module_names.CUDA_GRAPHS, recorded)


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
