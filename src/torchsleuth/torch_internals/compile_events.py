"""What torch says while it compiles: each step with its time, what caches answered, graph breaks, recompilations, lines
of its log, and the structured trace.

torch times its steps itself and tells one logger of them, in process, whether or not anybody listens. Listening there
costs nothing outside of compilation and switches none of torch's own tracing on. TORCH_LOGS sets which part logs how
much, and torch itself writes that to stderr; here it is read a second time. The trace holds graphs at each stage and
generated code: with a handler there torch writes down what it otherwise does not, and the lines are those of
`TORCH_TRACE`, which tlparse reads.

Versions: loggers, names of entries, counters and metrics are there in 2.11 to 2.15; without the one that times steps
`UnsupportedTorch` says so, any other does not come. Look-ups in caches are timed here, as torch does; one that a
version names differently is part of the step around it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
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
        found.append(
            {
                "graph": str(getattr(each, "compile_id", None)),
                "function": getattr(each, "co_name", None),
                "file": getattr(each, "co_filename", None),
                "line": getattr(each, "co_firstlineno", None),
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


_SHAPES = (
    "torch.fx.experimental.symbolic_shapes",
    "torch.fx.experimental.sym_node",
    "torch.fx.experimental.recording",
)
# torch lets none of these hand its messages on to the one above it.
_LOGGERS = {
    "dynamo": ("torch._dynamo", *_SHAPES),
    "aot": ("torch._functorch.aot_autograd", "torch._functorch._aot_autograd"),
    "inductor": ("torch._inductor", "torch._inductor.cudagraph_trees"),
    "dynamic": _SHAPES,
    "distributed": (
        "torch.distributed",
        "torch._dynamo.backends.distributed",
        "torch.nn.parallel.distributed",
    ),
}


LOGGER = "torch.__trace"
# Entry of the trace -> what it is to a person.
_ENTRIES = {
    "dynamo_output_graph": "captured",
    "aot_joint_graph": "joint",
    "aot_forward_graph": "forward-graph",
    "aot_backward_graph": "backward-graph",
    "aot_inference_graph": "inference-graph",
    "inductor_output_code": "code",
}
_ARTIFACTS = {"inductor_post_grad_graph": "transformed", "after_post_grad_graph": "transformed"}


@dataclass(frozen=True)
class TraceEntry:
    """One text of the trace. `what` says which, `graph` is torch's id of the compile, `attempt` counts restarts."""

    what: str
    text: str
    graph: str | None
    attempt: int | None


OnLine = Callable[[str], None]
OnEntry = Callable[[TraceEntry], None]


def listen_to_logs(parts: Iterable[str], on_line: OnLine) -> Callable[[], None]:
    """Hands everything that these parts log to `on_line`; returns the undo function.

    >>> listen_to_logs(["dynamo"], print)()
    """
    names = dict.fromkeys(name for part in parts for name in _LOGGERS.get(part, ()))
    undo = [_read(logging.getLogger(name), on_line) for name in names]
    return all_of(undo)


def listen_to_structured_trace(on_entry: OnEntry, on_line: OnLine | None = None) -> Callable[[], None]:
    """Hands graphs and generated code of the trace to `on_entry`, each line as it is to `on_line`; returns the undo."""
    return _read(logging.getLogger(LOGGER), on_line, on_entry)


def _read(
    logger: logging.Logger, on_line: OnLine | None, on_entry: OnEntry | None = None
) -> Callable[[], None]:
    handler = _Handler(on_line, on_entry)
    logger.addHandler(handler)
    return lambda: logger.removeHandler(handler)


class _Handler(logging.Handler):
    """Reads one logger: the trace's where there is an `on_entry`."""

    def __init__(self, on_line: OnLine | None, on_entry: OnEntry | None) -> None:
        super().__init__()
        self.on_line, self.on_entry = on_line, on_entry
        formatter = getattr(importlib.import_module("torch._logging._internal"), "TorchLogsFormatter", None)
        if formatter is not None:
            self.setFormatter(formatter(trace=on_entry is not None))

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):  # the user's program comes first
            metadata, text = getattr(record, "metadata", {}), getattr(record, "payload", None)
            what = _what(metadata) if self.on_entry is not None else None
            if self.on_entry is not None and what is not None and text:
                self.on_entry(TraceEntry(what, text, _compile_id(metadata), metadata.get("attempt")))
            if self.on_line is not None:
                self.on_line(self.format(record) + "\n")


def _what(metadata: dict[str, Any]) -> str | None:
    named = metadata.get("artifact")
    name = named.get("name", "") if isinstance(named, dict) else ""
    return _ARTIFACTS.get(name) or next((_ENTRIES[key] for key in metadata if key in _ENTRIES), None)


def _compile_id(metadata: dict[str, Any]) -> str | None:
    frame, times = metadata.get("frame_id"), metadata.get("frame_compile_id")
    if frame is None or times is None:
        return None
    autograd = metadata.get("compiled_autograd_id")
    return f"{frame}/{times}" if autograd is None else f"!{autograd}/{frame}/{times}"


def hook_fusion(on_loops: Callable[[str, str], None]) -> Callable[[], None]:
    """Hands the loops of a graph, as text, to `on_loops("before" or "after", text)` around fusion; returns the undo."""

    def reporting(when: str, original: Callable[[Any], None]) -> Callable[[Any], None]:
        def log_loops(nodes: Any) -> None:
            with contextlib.suppress(Exception):
                on_loops(when, "\n\n".join(node.debug_str() for node in nodes) + "\n")
            original(nodes)

        return log_loops

    before = ("torch._inductor.debug", "", "log_ir_pre_fusion")
    after = ("torch._inductor.debug", "", "log_ir_post_fusion")
    shown = (("before", before), ("after", after))
    return all_of(replaced(*place, functools.partial(reporting, when)) for when, place in shown)


def hook_cuda_graphs_left_out(on_reason: Callable[[str], None]) -> Callable[[], None]:
    """Hands `on_reason` why a graph is to run without a CUDA graph, in torch's words. Before others import the name."""

    def reporting(original: Callable[[str], None]) -> Callable[[str], None]:
        def log_skip(text: str) -> None:
            with contextlib.suppress(Exception):
                on_reason(text)
            original(text)

        return log_skip

    return replaced("torch._inductor.cudagraph_utils", "", "log_cudagraph_skip_and_bump_counter", reporting)


def hook_recorded_cuda_graphs(on_record: Callable[[int, str | None, str], None]) -> Callable[[], None]:
    """Tells each recording of a CUDA graph: torch's number of the function, its compile, why no recording fitted.

    2.11..2.15: a recording answers whether it fits with a status, and a function that words the reason.
    """
    last: list[Callable[[], str]] = []

    def asked(original: Callable[..., Any]) -> Callable[..., Any]:
        def check_invariants(self: Any, *args: Any, **kwargs: Any) -> Any:
            answer = original(self, *args, **kwargs)
            if isinstance(answer, tuple) and getattr(answer[0], "name", "SUCCESS") != "SUCCESS":
                last[:] = [answer[1]]
            return answer

        return check_invariants

    def recording(original: Callable[..., Any]) -> Callable[..., Any]:
        def record_function(self: Any, new_inputs: Any, function_id: Any) -> Any:
            with contextlib.suppress(Exception):
                compiled = getattr(self, "id_to_compile_id", {}).get(function_id)
                why = last.pop()() if last else ""
                on_record(function_id.id, None if compiled is None else str(compiled), why)
            return original(self, new_inputs, function_id)

        return record_function

    place = "torch._inductor.cudagraph_trees"
    return all_of(
        (
            replaced(place, "CUDAGraphNode", "check_invariants", asked),
            replaced(place, "CUDAGraphTreeManager", "record_function", recording),
        )
    )
