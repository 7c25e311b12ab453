"""What Dynamo does: each compile of a frame, graph breaks, recompilations, graphs and their calls, the capture itself.

Whatever is collected refers to the compile of a frame by process and number (`frame`), because torch's own ids begin
anew after a reset. A graph's calls are counted, as a break costs each time it is passed; a count is written whenever
it has doubled, so that a process that is killed has told it to within a factor of two.
"""

from __future__ import annotations

import atexit
import dataclasses
import itertools
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torchsleuth.core.watching import INSTRUCTIONS_VARIABLE, Settings
from torchsleuth.torch_internals import module_names
from torchsleuth.watched.observe.events import Events, harmless
from torchsleuth.watched.startup import after_import, standing_for

if TYPE_CHECKING:
    from torchsleuth.torch_internals.frames import FrameCompile
    from torchsleuth.torch_internals.hooks import BackendCall


def wanted(function: str, only: str | None) -> bool:
    """Whether `--only NAME` is about this function, by its name or its qualified name.

    >>> wanted("Model.forward", "forward"), wanted("Model.forward", "loss"), wanted("f.<locals>.g", "g")
    (True, False, True)
    """
    return only is None or only in (function, function.rpartition(".")[2])


# ---- frames: always on, outermost


class _UnderWay(threading.local):
    """The frames that this thread is compiling, the innermost last."""

    def __init__(self) -> None:
        self.frames: list[int] = []


_under_way = _UnderWay()
_numbers = itertools.count()


def frame_under_way() -> int | None:
    """The number of the frame that is being compiled, as its `frame` event will give it."""
    return _under_way.frames[-1] if _under_way.frames else None


def install_frames(settings: Settings, events: Events) -> None:
    """Waits for Dynamo and then writes a `frame_begin` and, once it has ended, a `frame` event for each compile."""
    at_frame_compiles(lambda seen: note_frame(seen, events, settings.only))


def at_frame_compiles(handler: Callable[[FrameCompile], Any]) -> None:
    """Waits for Dynamo, then hands each compile of a frame to `handler`, which lets it be compiled."""

    def put_in(_module: ModuleType) -> None:
        from torchsleuth.torch_internals.frames import hook_frame_compiles

        hook_frame_compiles(handler)

    after_import(module_names.FRAME_CAPTURE, put_in)


def note_frame(seen: FrameCompile, events: Events, only: str | None) -> Any:
    """Lets one frame be compiled and writes what came of it."""
    from torchsleuth.torch_internals.frames import failure_text, original_function, was_compiled

    number = next(_numbers)
    function, file, line = original_function(seen.code)
    whose = {"frame": number, "id": seen.compile_id, "function": function, "file": file, "line": line}
    is_wanted = wanted(function, only)
    if is_wanted:
        events.write("frame_begin", **whose)
    _under_way.frames.append(number)
    started, outcome, failed = time.perf_counter(), "error", None
    try:
        result = seen.compile()
        outcome = "compiled" if was_compiled(result) else "skipped"
        return result
    except BaseException as error:
        outcome, failed = type(error).__name__, failure_text(error)
        raise
    finally:
        _under_way.frames.pop()
        if is_wanted:
            events.write(
                "frame",
                **whose,
                code=seen.code.co_name,
                recompiled=bool(seen.entries),
                outcome=outcome,
                failed=failed,
                seconds=round(time.perf_counter() - started, 6),
            )


# ---- graph breaks, and what is captured between them


def install_breaks(settings: Settings, events: Events) -> None:
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
    """What one process saw of breaks and graphs."""

    def __init__(self, events: Events, only: str | None = None) -> None:
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

    def on_backend(self, call: BackendCall) -> Callable[..., Any]:
        """Lets a backend compile one graph, and counts the calls of what it gives."""
        from torchsleuth.torch_internals.hooks import target_name

        ops: list[str] = []
        with harmless(self.events):  # now, because the backend takes the graph over and changes it
            ops += [target_name(n) for n in call.graph.graph.nodes if n.op.startswith("call_")]
        frame, started = frame_under_way(), time.perf_counter()
        compiled = call.as_without_us()
        seconds = round(time.perf_counter() - started, 6)
        number, counts = len(self.counts), self.counts
        counts.append(0)
        self.events.write("graph", frame=frame, graph=number, ops=ops, backend=call.name, seconds=seconds)

        def counted(*args: Any) -> Any:
            counts[number] += 1
            count = counts[number]
            if count & (count - 1) == 0:
                self.events.write("calls", graph=number, count=count)
            return compiled(*args)

        return standing_for(counted, compiled)

    def write_calls(self) -> None:
        """The counts as they are now, for those that were not just written."""
        for number, count in enumerate(self.counts):
            if count & (count - 1):
                self.events.write("calls", graph=number, count=count)


# ---- loops that capture unrolls: each round is captured, and compiled, by itself


def install_loops(_settings: Settings, events: Events) -> None:
    """Waits for the seam to the backend, then writes a `loop` event for each graph that holds rounds of a loop."""

    def note(call: BackendCall) -> Any:
        with harmless(events):
            stacks = [
                (_lines(node.stack_trace), str(node.target))
                for node in call.graph.graph.nodes
                if node.op.startswith("call_") and node.stack_trace
            ]
            found = unrolled(stacks)
            if found is not None:
                events.write("loop", frame=frame_under_way(), **found)
        return call.as_without_us()

    def at_backend(_module: ModuleType) -> None:
        from torchsleuth.torch_internals.hooks import hook_backend_calls

        hook_backend_calls(note)

    after_import(module_names.BACKEND_CALL, at_backend)


Line = tuple[str, int, str, str]  # file, line, function, code
_LINE = re.compile(r'File "([^"\n]+)", line (\d+), in (\S+)\n\s*([^\n]*)')
# Fewer rounds are not worth a word.
_LEAST_ROUNDS = 4


def _lines(stack: str) -> tuple[Line, ...]:
    return tuple((file, int(line), function, code) for file, line, function, code in _LINE.findall(stack))


def unrolled(calls: list[tuple[tuple[Line, ...], str]]) -> dict[str, Any] | None:
    """The loop of which a graph has the most rounds: its line, how often that was gone through, what it calls.

    `calls` are the operations, each with the lines that led to it.

    >>> body = (("m.py", 9, "forward", "x = b(x)"), ("m.py", 4, "block", "x.sin()"))
    >>> found = unrolled([(body, "sin")] * 6 + [((("m.py", 10, "forward", "x + 1"),), "add")])
    >>> found["line"], found["rounds"], found["ops"], found["of"], found["calls"]
    (9, 6, 6, 7, ['m.py', 4, 'block'])
    """
    counts = Counter(calls)
    (stack, _), rounds = max(counts.items(), key=lambda item: item[1], default=(((), ""), 0))
    if rounds < _LEAST_ROUNDS:
        return None
    for depth in range(1, len(stack) + 1):  # the outermost line below which all is gone through as often
        below = {call: times for call, times in counts.items() if call[0][:depth] == stack[:depth]}
        if all(2 * times >= rounds for times in below.values()):
            file, line, function, code = stack[depth - 1]
            inner = list(stack[depth][:1] + stack[depth][1:3]) if depth < len(stack) else None
            ops = sum(below.values())
            where = {"file": file, "line": line, "function": function, "code": code}
            return {**where, "rounds": rounds, "ops": ops, "of": len(calls), "calls": inner}
    return None


# ---- recompilations: which compiled versions did not fit, which guards said no, and limits reached


def install_recompiles(settings: Settings, events: Events) -> None:
    """Waits for Dynamo, then writes a `recompile` event for each recompilation and a `limit` event at a limit."""
    at_frame_compiles(lambda seen: note_recompile(seen, events, settings.only))


def note_recompile(seen: FrameCompile, events: Events, only: str | None) -> Any:
    """Writes why a frame is compiled once more, and lets it be."""
    if not seen.entries:
        return seen.compile()
    from torchsleuth.torch_internals.captures import refused_entries
    from torchsleuth.torch_internals.frames import original_function

    function = seen.code.co_name
    with harmless(events):
        function, file, line = original_function(seen.code)
        if wanted(function, only):
            refused = refused_entries(seen.entries, seen.frame, seen.backend)
            events.write(
                "recompile",
                frame=frame_under_way(),
                id=seen.compile_id,
                function=function,
                file=file,
                line=line,
                code=seen.code.co_name,
                arguments=list(seen.code.co_varnames[: seen.code.co_argcount]),
                refused=[dataclasses.asdict(entry) for entry in refused],
            )
    try:
        return seen.compile()
    except Exception as error:
        text = f"{getattr(error, 'gb_type', '')} {error} {error.__cause__}"
        limit = re.search(r"(?:Limit type: |exceeding the )(\w*recompile_limit)", text)
        if limit is not None and wanted(function, only):
            value = re.search(r"currently set to (\d+)", text)
            events.write(
                "limit",
                frame=frame_under_way(),
                function=function,
                limit=limit[1],
                value=int(value[1]) if value else None,
            )
        raise


# ---- the capture from inside: functions gone through, graphs handed on, guards, side effects


def install_trace(_settings: Settings, events: Events) -> None:
    """Waits for each part of Dynamo and then writes what it does; see `torch_internals.captures`."""
    instructions = bool(os.environ.get(INSTRUCTIONS_VARIABLE))

    def hook(name: str, put: Callable[[Any], None]) -> None:
        def put_in(_module: ModuleType) -> None:
            from torchsleuth.torch_internals import captures

            put(captures)

        after_import(name, put_in)

    hook(module_names.TRACER, lambda frames: frames.hook_traced_functions(events.write, instructions))
    hook(module_names.CAPTURED_GRAPH, lambda frames: frames.hook_subgraphs(events.write))
    hook(module_names.GUARDS, lambda frames: frames.hook_guards(events.write))
    hook(module_names.SIDE_EFFECTS, lambda frames: frames.hook_side_effects(events.write))
