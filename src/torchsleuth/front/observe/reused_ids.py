"""torch begins the ids of its compiles anew after a reset: which of several compiles of one id an event belongs to."""

from __future__ import annotations

from collections import Counter

from torchsleuth.front.observe.events import Event

# The step that is the compile of one frame.
FRAME_STEP = "dynamo"


class ReusedIds:
    """Looks at events in their order; what comes after a frame's compile, such as its backward, belongs to the last.

    >>> ids = ReusedIds()
    >>> for _ in range(2): ids.see(Event("frame", 1.0, 7, {"id": "0/0"}))
    >>> ids.again(7, "0/0"), ids.again(7, "1/0")
    (1, 0)
    """

    def __init__(self) -> None:
        self._ended: Counter[tuple[int, str]] = Counter()
        self._under_way: set[tuple[int, str]] = set()

    def see(self, event: Event) -> None:
        """One event; a frame's compile begins with its step or its first function, and ends with `frame`."""
        given = event.fields
        if event.kind == "frame":
            key = (event.pid, str(given.get("id")))
            self._ended[key] += 1
            self._under_way.discard(key)
        elif (event.kind == "trace_enter" and given.get("parent") is None) or (
            event.kind == "step_begin" and given.get("name") == FRAME_STEP
        ):
            self._under_way.add((event.pid, str(given.get("graph"))))

    def again(self, pid: int, graph: str) -> int:
        """How often this id was used before the compile that is under way, or was the last."""
        key = (pid, graph)
        return self._ended[key] if key in self._under_way else max(0, self._ended[key] - 1)
