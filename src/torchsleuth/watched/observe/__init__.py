"""Collectors: what the compiler does in a program in which nothing fails.

Each collector is a module with `install(settings, events)`. It is imported at the start of the process, before torch,
so it waits with `after_import` for the part of torch that it looks at, writes what it sees as events, and changes
nothing. The variable TORCHSLEUTH_OBSERVE names those that are wanted; without it nothing here is imported.
"""

from __future__ import annotations

import importlib
import os
import sys

from torchsleuth.core.watching import OBSERVE_VARIABLE, Settings
from torchsleuth.watched.observe.events import EventWriter

# Name -> the module that holds it. `frames` is always on, outermost: the others refer to what it writes.
COLLECTORS = {
    "frames": "torchsleuth.watched.observe.frames",
    "breaks": "torchsleuth.watched.observe.breaks",
    "recompiles": "torchsleuth.watched.observe.recompiles",
    "times": "torchsleuth.watched.observe.times",
    "trace": "torchsleuth.watched.observe.trace",
    "debug": "torchsleuth.watched.observe.debug",
    "logs": "torchsleuth.watched.observe.logs",
}


def observe_this_process(settings: Settings) -> None:
    """Installs the collectors that the environment names; one that cannot be is told on stderr and left out."""
    events = EventWriter(settings.spool)
    wanted = filter(None, os.environ.get(OBSERVE_VARIABLE, "").split(","))
    for name in (*(each for each in wanted if each != "frames"), "frames"):
        try:
            importlib.import_module(COLLECTORS[name]).install(settings, events)
        except Exception as error:  # the user's program comes first
            sys.stderr.write(f"torchsleuth: not collecting {name}: {type(error).__name__}: {error}\n")
