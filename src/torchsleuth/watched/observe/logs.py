"""What the compiler logs, in `compiler-<pid>.log` of the spool. TORCHSLEUTH_LOG names the parts, comma separated."""

from __future__ import annotations

import os
from types import ModuleType

from torchsleuth.core.watching import LOG_VARIABLE, Settings
from torchsleuth.torch_internals import module_names
from torchsleuth.watched.observe.bounded_file import BoundedFile
from torchsleuth.watched.observe.events import EventWriter
from torchsleuth.watched.startup import after_import

LOG_FILE = "compiler-{pid}.log"
MOST_BYTES = 64 << 20
CUT = "[torchsleuth: this file has reached its bound, the rest is left out]\n"


def install(settings: Settings, _events: EventWriter) -> None:
    """Waits for torch's loggers and then writes what they say."""
    parts = [part for part in os.environ.get(LOG_VARIABLE, "").split(",") if part]

    def put_in(_module: ModuleType) -> None:
        from torchsleuth.torch_internals.compiler_logs import listen_to_logs

        listen_to_logs(parts, BoundedFile(settings.spool, LOG_FILE, MOST_BYTES, CUT).write)

    after_import(module_names.LOGGING, put_in)
