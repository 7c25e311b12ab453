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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from torchsleuth.torch_internals.hooks import UnsupportedTorch

BEGIN, END, MARK = "begin", "end", "mark"
# Where a look-up takes place: module, class, method.
_LOOK_UPS = (
    ("torch._functorch._aot_autograd.autograd_cache", "AOTAutogradCache", "try_load"),
    ("torch._inductor.codecache", "FxGraphCache", "prepare_key"),
    ("torch._inductor.codecache", "FxGraphCache", "load_with_key"),
)
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
    """Tells `listener` of every timed step of the compiler in this process; returns the undo function.

    >>> seen = []
    >>> undo = listen_to_compile_events(seen.append)
    >>> _ = torch.compile(lambda x: x.cos(), backend="eager")(torch.ones(2))
    >>> undo()
    >>> seen[0].kind
    'begin'
    """
    logger = getattr(importlib.import_module("torch._dynamo.utils"), "ChromiumEventLogger", None)
    if logger is None:
        raise UnsupportedTorch("this torch does not tell how long its compiler's steps take")
    told = _Teller(listener)

    def around(name: str, tell: Callable[..., None]) -> Callable[[], None]:
        original = getattr(logger, name)

        @functools.wraps(original)
        def call(
            self: Any, event_name: str, time_ns: int, metadata: Any = None, *args: Any, **kw: Any
        ) -> Any:
            # torch puts the compile's id into the metadata while it logs the beginning.
            result = original(self, event_name, time_ns, metadata, *args, **kw)
            tell(event_name, time_ns / 1e9, metadata if isinstance(metadata, dict) else {})
            return result

        setattr(logger, name, call)
        return lambda: setattr(logger, name, original)

    undo = (
        around("log_event_start", functools.partial(told.tell, BEGIN)),
        around("log_event_end", functools.partial(told.tell, END)),
        around("log_instant_event", functools.partial(told.tell, MARK)),
    )
    return functools.partial(_all, undo)


def time_look_ups(module: str, listener: Listener) -> Callable[[], None]:
    """Tells `listener` of look-ups in the caches of `module`, one of `LOOK_UP_MODULES`; returns the undo function."""
    told = _Teller(listener)
    undo: list[Callable[[], None]] = []
    for where, owner, method in _LOOK_UPS:
        target = getattr(importlib.import_module(module), owner, None) if where == module else None
        descriptor = None if target is None else target.__dict__.get(method)
        if isinstance(descriptor, (classmethod, staticmethod)):
            wrapped = type(descriptor)(_timed(f"{owner}.{method}", descriptor.__func__, told))
            setattr(target, method, wrapped)
            undo.append(functools.partial(setattr, target, method, descriptor))
    return functools.partial(_all, undo)


def _all(calls: Iterable[Callable[[], None]]) -> None:
    for call in calls:
        call()


def _timed(name: str, original: Callable[..., Any], told: _Teller) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        facts = {"compile_id": str(_compile_id())}
        told.tell(BEGIN, name, time.time(), facts)
        try:
            return original(*args, **kwargs)
        finally:
            told.tell(END, name, time.time(), facts)

    return call


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


def _compile_id() -> Any:
    from torch._guards import CompileContext

    return CompileContext.current_compile_id()


class _Teller:
    """Makes a `CompileEvent` of what torch logs. What fails in here is dropped: the user's program comes first."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener

    def tell(self, kind: str, name: str, seconds: float, metadata: Mapping[str, Any]) -> None:
        with contextlib.suppress(Exception):
            graph = metadata.get("compile_id")
            facts = {key: metadata[key] for key in ("is_backward", "cache_state") if key in metadata}
            self.listener(
                CompileEvent(
                    kind,
                    str(name),
                    seconds,
                    threading.get_ident(),
                    None if graph in (None, "None") else str(graph),
                    metadata.get("fn_name"),
                    facts,
                )
            )


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
