"""What torch times and counts while it compiles: each step, what caches answered, graph breaks, recompilations.

torch times its steps itself and tells one logger of them, in process, whether or not anybody listens. Listening there
costs nothing outside of compilation and switches none of torch's own tracing on.

Versions: logger, counters and metrics are there in 2.11 to 2.15; without them `UnsupportedTorch` says so. Look-ups in
caches are timed here, as torch does not; one that a version names differently is part of the step around it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from torchsleuth.torch_internals.hooks import current_compile_id
from torchsleuth.torch_internals.places import UnsupportedTorch, all_of, replaced

BEGIN, END, MARK = "begin", "end", "mark"
# Where a look-up takes place: module, class, method.
_LOOK_UPS = (
    ("torch._functorch._aot_autograd.autograd_cache", "AOTAutogradCache", "try_load"),
    ("torch._inductor.codecache", "FxGraphCache", "prepare_key"),
    ("torch._inductor.codecache", "FxGraphCache", "load_with_key"),
)
_LOGGER = ("torch._dynamo.utils", "ChromiumEventLogger")
LOOK_UP_MODULES = tuple(dict.fromkeys(module for module, _, _ in _LOOK_UPS))


@dataclass(frozen=True)
class CompileEvent:
    """A step of a compile begins or ends, or something happened at a moment (`mark`). `time` is in seconds since 1970.

    `graph` is torch's id of the compile (`0/1`); `function` the function of torch's that a step stands for.
    """

    kind: str
    name: str
    time: float
    thread: int
    graph: str | None = None
    function: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


Listener = Callable[[CompileEvent], None]


def listen_to_compile_events(listener: Listener) -> Callable[[], None]:
    """Reports to `listener` every timed step of the compiler in this process; returns the undo function.

    >>> seen = []
    >>> undo = listen_to_compile_events(seen.append)
    >>> _ = torch.compile(lambda x: x.cos(), backend="eager")(torch.ones(2))
    >>> undo()
    >>> seen[0].kind
    'begin'
    """

    def reporting(kind: str, original: Any) -> Any:
        def call(
            self: Any, event_name: str, time_ns: int, metadata: Any = None, *args: Any, **kw: Any
        ) -> Any:
            # torch puts the compile's id into the metadata while it logs the beginning.
            result = original(self, event_name, time_ns, metadata, *args, **kw)
            facts = metadata if isinstance(metadata, dict) else {}
            _report(listener, kind, event_name, time_ns / 1e9, facts)
            return result

        return call

    needed = "this torch does not tell how long its compiler's steps take"
    names = {BEGIN: "log_event_start", END: "log_event_end", MARK: "log_instant_event"}
    return all_of(
        replaced(*_LOGGER, name, functools.partial(reporting, kind), needed=needed)
        for kind, name in names.items()
    )


def time_look_ups(module: str, listener: Listener) -> Callable[[], None]:
    """Reports to `listener` look-ups in the caches of `module`, one of `LOOK_UP_MODULES`; returns the undo function."""
    return all_of(
        replaced(where, owner, method, functools.partial(_timed, f"{owner}.{method}", listener))
        for where, owner, method in _LOOK_UPS
        if where == module
    )


def _timed(name: str, listener: Listener, descriptor: Any) -> Any:
    if not isinstance(descriptor, (classmethod, staticmethod)):
        return descriptor
    original = descriptor.__func__

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        facts = {"compile_id": current_compile_id()}
        _report(listener, BEGIN, name, time.time(), facts)
        try:
            return original(*args, **kwargs)
        finally:
            _report(listener, END, name, time.time(), facts)

    return type(descriptor)(call)


def _report(listener: Listener, kind: str, name: str, seconds: float, metadata: Mapping[str, Any]) -> None:
    """Makes an event of what torch logs. What fails in here is dropped: the user's program comes first."""
    with contextlib.suppress(Exception):
        graph = metadata.get("compile_id")
        facts = {key: metadata[key] for key in ("is_backward", "cache_state") if key in metadata}
        graph = None if graph in (None, "None") else str(graph)
        thread = threading.get_ident()
        listener(CompileEvent(kind, str(name), seconds, thread, graph, metadata.get("fn_name"), facts))


def step_times() -> dict[str, list[float]]:
    """What torch has counted so far in this process: seconds by the name of each step, one number for each time.

    Such as `{'_compile.compile_inner': [0.1021], 'bytecode_tracing': [0.0312]}`.
    """
    metrics = getattr(importlib.import_module("torch._dynamo.utils"), "compilation_time_metrics", {})
    return {name: [float(seconds) for seconds in times] for name, times in metrics.items()}


def frame_times() -> list[dict[str, Any]]:
    """What torch remembers of the last compiles of this process, a dictionary for each frame and each backward.

    Such as `{'graph': '0/0', 'function': 'step', 'file': 'train.py', 'line': 12, 'backward': False, 'seconds': 0.1}`.
    """
    found = []
    for each in importlib.import_module("torch._dynamo.utils").get_compilation_metrics():
        known = {name: getattr(each, name, None) for name in ("co_name", "co_filename", "co_firstlineno")}
        found.append(
            {
                "graph": str(getattr(each, "compile_id", None)),
                "function": known["co_name"],
                "file": known["co_filename"],
                "line": known["co_firstlineno"],
                "backward": getattr(each, "is_forward", None) is False,
                "seconds": (getattr(each, "duration_us", None) or 0) / 1e6,
            }
        )
    return found


@dataclass(frozen=True)
class Compilation:
    """One function that Dynamo compiled; `again` is the guard that failed where it had been compiled before."""

    function: str
    file: str
    line: int
    again: str | None


@dataclass(frozen=True)
class Counted:
    """What was counted up to a moment; hold one from before to know what is new."""

    breaks: dict[str, int]
    compiled: tuple[Any, ...]


def counted_so_far() -> Counted:
    """The counters as they stand: `before = counted_so_far()`."""
    utils: Any = importlib.import_module("torch._dynamo.utils")
    try:
        return Counted(dict(utils.counters["graph_break"]), tuple(utils.get_compilation_metrics()))
    except AttributeError as error:
        raise UnsupportedTorch(
            f"torch {torch.__version__} does not count its compilations ({error})"
        ) from error


def graph_breaks_since(before: Counted) -> list[str]:
    """The first line of each reason for a graph break, once for each break since then."""
    now = counted_so_far().breaks
    return [
        reason.strip().splitlines()[0] if reason.strip() else "no reason given"
        for reason, times in now.items()
        for _ in range(times - before.breaks.get(reason, 0))
    ]


def compilations_since(before: Counted) -> list[Compilation]:
    """What Dynamo has compiled since then; torch remembers the last 64."""
    known = {id(each) for each in before.compiled}
    return [
        Compilation(
            str(each.co_name), str(each.co_filename), int(each.co_firstlineno or 0), each.recompile_reason
        )
        for each in counted_so_far().compiled
        if id(each) not in known
    ]


def has_compiled() -> bool:
    """Whether Dynamo has looked at any function of this process since it was last reset."""
    utils: Any = importlib.import_module("torch._dynamo.utils")
    convert_frame: Any = importlib.import_module("torch._dynamo.convert_frame")
    tried = getattr(convert_frame, "FRAME_COMPILE_COUNTER", None)
    return bool(tried) or any(utils.counters.values())
