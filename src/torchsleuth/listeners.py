"""Backend objects that hear of the compiles made with them, in the process that made them.

The hooks are put in with the first listener and stay; what is compiled with any other backend passes through.
"""

from __future__ import annotations

import functools
import os
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from torchsleuth.front.observe.events import Event
from torchsleuth.torch_internals import frames


class Listener(Protocol):
    """A backend that wants to hear of frames compiled with it, and of graph breaks in them."""

    def on_frame(self, seen: frames.FrameCompile) -> Any: ...

    def on_break(self, look: Callable[[], Any]) -> None: ...


@dataclass
class EventsInMemory:
    """What the collectors write, kept here.

    >>> events = EventsInMemory()
    >>> events.write("frame", line=1)
    >>> events.kept[0].fields
    {'line': 1}
    """

    kept: list[Event] = field(default_factory=list)

    def write(self, kind: str, **fields: Any) -> None:
        self.kept.append(Event(kind, time.time(), os.getpid(), fields))


_listening: weakref.WeakSet[Any] = weakref.WeakSet()


def listen(listener: Listener) -> None:
    """Tells `listener` of the compiles made with it, as long as it lives: `listen(self)`."""
    _put_in()
    _listening.add(listener)


@functools.cache
def _put_in() -> None:
    def on_frame(seen: frames.FrameCompile) -> Any:
        mine = next((each for each in _listening if each is seen.backend), None)
        return seen.compile() if mine is None else mine.on_frame(seen)

    def on_break(look: Callable[[], Any], backend: Any) -> None:
        for each in list(_listening):
            if each is backend:
                each.on_break(look)

    frames.hook_frame_compiles(on_frame)
    frames.hook_graph_breaks(on_break)
    frames.hook_frame_refusals(on_break)
