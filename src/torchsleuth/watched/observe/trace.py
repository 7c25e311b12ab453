"""The capture from inside: functions gone through, graphs handed on, guards, side effects; see `traced_frames`.

TORCHSLEUTH_TRACE_INSTRUCTIONS asks for each bytecode instruction as well.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torchsleuth.core.watching import INSTRUCTIONS_VARIABLE, Settings
from torchsleuth.torch_internals import module_names
from torchsleuth.watched.observe.events import EventWriter
from torchsleuth.watched.startup import after_import


def install(_settings: Settings, events: EventWriter) -> None:
    """Waits for each part of Dynamo and then writes what it does."""
    instructions = bool(os.environ.get(INSTRUCTIONS_VARIABLE))

    def hook(name: str, put: Callable[[Any], None]) -> None:
        def put_in(_module: ModuleType) -> None:
            from torchsleuth.torch_internals import traced_frames

            put(traced_frames)

        after_import(name, put_in)

    hook(module_names.TRACED_FRAMES, lambda frames: frames.hook_traced_functions(events.write, instructions))
    hook(module_names.CAPTURED_GRAPH, lambda frames: frames.hook_subgraphs(events.write))
    hook(module_names.GUARDS, lambda frames: frames.hook_guards(events.write))
    hook(module_names.SIDE_EFFECTS, lambda frames: frames.hook_side_effects(events.write))
