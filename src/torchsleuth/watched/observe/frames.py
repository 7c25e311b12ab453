"""The collector that is always on: each compile of a frame, how long it took and what came of it.

Whatever else is collected refers to these by process and number (`frame`); torch's own ids begin anew after a reset.
"""

from __future__ import annotations

import itertools
import threading
import time
from types import ModuleType
from typing import Any

from torchsleuth.torch_internals import module_names
from torchsleuth.watched.observe.events import EventWriter
from torchsleuth.watched.startup import after_import
from torchsleuth.watched.watch_settings import Settings

_numbers = itertools.count()


class _UnderWay(threading.local):
    """The frames that this thread is compiling, the innermost last."""

    def __init__(self) -> None:
        self.frames: list[int] = []


_under_way = _UnderWay()


def frame_under_way() -> int | None:
    """The number of the frame that is being compiled, as its `frame` event will give it."""
    return _under_way.frames[-1] if _under_way.frames else None


def install(settings: Settings, events: EventWriter) -> None:
    """Waits for Dynamo and then writes a `frame_begin` and, once it has ended, a `frame` event for each compile."""

    def put_in(_module: ModuleType) -> None:
        from torchsleuth.torch_internals.frames import hook_frame_compiles

        hook_frame_compiles(lambda compile: note_frame(compile, events, settings.only))

    after_import(module_names.FRAME_CAPTURE, put_in)


def note_frame(seen: Any, events: Any, only: str | None) -> Any:
    """Lets one frame be compiled and writes what came of it."""
    from torchsleuth.torch_internals.frames import failure_text, original_function, was_compiled

    number = next(_numbers)
    function, file, line = original_function(seen.code)
    whose = {"frame": number, "id": seen.compile_id, "function": function, "file": file, "line": line}
    told = wanted(function, only)
    if told:
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
        if told:
            events.write(
                "frame",
                **whose,
                code=seen.code.co_name,
                recompiled=bool(seen.entries),
                outcome=outcome,
                failed=failed,
                seconds=round(time.perf_counter() - started, 6),
            )


def wanted(function: str, only: str | None) -> bool:
    """Whether `--only NAME` is about this function, by its name or its qualified name.

    >>> wanted("Model.forward", "forward"), wanted("Model.forward", "loss"), wanted("f.<locals>.g", "g")
    (True, False, True)
    """
    return only is None or only in (function, function.rpartition(".")[2])
