"""What torch logs of its compiler, read in the process that logs it: lines of its parts, and the structured trace.

TORCH_LOGS sets which part logs how much, and torch itself writes that to stderr; here it is read a second time. The
trace holds graphs at each stage and generated code: with a handler there torch writes down what it otherwise does not,
and the lines are those of `TORCH_TRACE`, which tlparse reads.

Versions: the loggers and names of entries are those of 2.11 to 2.15; one that a version lacks does not come.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torchsleuth.torch_internals.places import all_of, replaced

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
