"""The debug folder: every stage of every graph as text, in files of the spool, with an event `artefact` for each.

TORCHSLEUTH_ARTEFACTS names the kinds that are wanted, comma separated. Runnable graphs are not written here: the watch
keeps a record of each graph, and the front makes scripts of those.
"""

from __future__ import annotations

import contextlib
import cProfile
import dis
import io
import os
import pstats
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torchsleuth.torch_internals import module_names
from torchsleuth.watched.observe.bounded_file import BoundedFile
from torchsleuth.watched.observe.events import EventWriter
from torchsleuth.watched.observe_settings import ARTEFACTS_VARIABLE, TORCH_TRACE
from torchsleuth.watched.startup import after_import
from torchsleuth.watched.watch_settings import Settings

if TYPE_CHECKING:
    from torchsleuth.torch_internals.compiler_logs import TraceEntry
    from torchsleuth.torch_internals.frames import FrameCompile
    from torchsleuth.torch_internals.hooks import InnerCompile

# Kinds a person can switch -> what belongs to them.
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
MOST_TRACE_BYTES = 64 << 20
PROFILED_FUNCTIONS = 60


def install(settings: Settings, events: EventWriter) -> None:
    """Waits for each part of the compiler and then writes down what it makes."""
    names = [name for name in os.environ.get(ARTEFACTS_VARIABLE, "").split(",") if name]
    collector = _Collector(
        settings.spool, events, frozenset(kind for name in names for kind in KINDS.get(name, ()))
    )

    def trace(_module: ModuleType) -> None:
        from torchsleuth.torch_internals.compiler_logs import listen_to_structured_trace

        lines = BoundedFile(settings.spool, "torch-trace-{pid}.log", MOST_TRACE_BYTES)
        listen_to_structured_trace(collector.entry, lines.write if TORCH_TRACE in names else None)

    def fusion(_module: ModuleType) -> None:
        from torchsleuth.torch_internals.compiler_logs import hook_fusion

        hook_fusion(lambda when, text: collector.keep(f"ir-{when}-fusion", text))

    def inner(_module: ModuleType) -> None:
        from torchsleuth.torch_internals.hooks import hook_inner_compiles

        hook_inner_compiles(collector.compile)

    def frames(_module: ModuleType) -> None:
        from torchsleuth.torch_internals.frames import hook_frame_compiles

        hook_frame_compiles(collector.frame)

    after_import(module_names.LOGGING, trace)
    after_import(module_names.FRAME_CAPTURE, frames)
    after_import(module_names.FUSION, fusion)
    after_import(module_names.INNER_COMPILE, inner)


class _Collector:
    """What of the graph under way is kept; `direction` is that of the graph in Inductor's hands."""

    def __init__(self, spool: str, events: EventWriter, wanted: frozenset[str]) -> None:
        self.spool, self.events, self.wanted = spool, events, wanted
        self.written = self.number = 0
        self.direction: str | None = None

    def entry(self, entry: TraceEntry) -> None:
        """One text of torch's own trace."""
        self.keep(entry.what, entry.text, graph=entry.graph, attempt=entry.attempt)

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
        before, self.direction = self.direction, _direction(call)
        try:
            return self._profiled(call) if "compile-profile" in self.wanted else call.as_without_us()
        finally:
            self.direction = before

    def _profiled(self, call: InnerCompile) -> Any:
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


def _direction(call: InnerCompile) -> str:
    if call.kwargs.get("is_backward"):
        return "backward"
    return "inference" if call.kwargs.get("is_inference") else "forward"
