"""What the parts of the compiler log, read in the process that logs it.

TORCH_LOGS sets which part logs how much, and torch itself writes that to stderr; here it is heard a second time.

Versions: the loggers are those of 2.11 to 2.15.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Callable, Iterable

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


def listen_to_logs(parts: Iterable[str], on_line: Callable[[str], None]) -> Callable[[], None]:
    """Hands everything that these parts log to `on_line`; returns the undo function.

    >>> listen_to_logs(["dynamo"], print)()
    """
    handler = _Handler(on_line)
    loggers = [
        logging.getLogger(name) for name in dict.fromkeys(n for part in parts for n in _LOGGERS.get(part, ()))
    ]
    for logger in loggers:
        logger.addHandler(handler)

    def undo() -> None:
        for logger in loggers:
            logger.removeHandler(handler)

    return undo


class _Handler(logging.Handler):
    def __init__(self, on_line: Callable[[str], None]) -> None:
        super().__init__()
        self.on_line = on_line
        formatter = getattr(importlib.import_module("torch._logging._internal"), "TorchLogsFormatter", None)
        if formatter is not None:
            self.setFormatter(formatter())

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):  # the user's program comes first
            self.on_line(self.format(record) + "\n")
