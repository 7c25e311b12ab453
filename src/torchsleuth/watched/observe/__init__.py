"""Collectors: what the compiler does in a program in which nothing fails.

Each collector is a function of `(settings, events)`. It is called at the start of the process, before torch is there,
so it waits with `after_import` for the part of torch that it looks at, writes what it sees as events, and changes
nothing. The variable TORCHSLEUTH_OBSERVE names those that are wanted; without it nothing here is imported.
"""

from __future__ import annotations

import os
import sys

from torchsleuth.core.watching import OBSERVE_VARIABLE, Settings


def observe_this_process(settings: Settings) -> None:
    """Installs the collectors that the environment names; one that cannot be is told on stderr and left out."""
    from torchsleuth.watched.observe import captures, compiler
    from torchsleuth.watched.observe.events import EventWriter

    collectors = {
        "breaks": captures.install_breaks,
        "recompiles": captures.install_recompiles,
        "loops": captures.install_loops,
        "times": compiler.install_times,
        "cudagraphs": compiler.install_cuda_graphs,
        "trace": captures.install_trace,
        "debug": compiler.install_artefacts,
        "logs": compiler.install_logs,
        # Always on, and outermost: the others refer to what it writes.
        "frames": captures.install_frames,
    }
    events = EventWriter(settings.spool)
    asked = [name for name in os.environ.get(OBSERVE_VARIABLE, "").split(",") if name]
    for name in (*(each for each in asked if each != "frames"), "frames"):
        try:
            collectors[name](settings, events)
        except Exception as error:  # the user's program comes first
            sys.stderr.write(f"torchsleuth: not collecting {name}: {type(error).__name__}: {error}\n")
