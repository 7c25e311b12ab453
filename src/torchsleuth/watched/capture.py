"""One look of Dynamo's at a frame: what it gave the function up for, and what it left behind.

What is put in force with an object, for as long as that lives, may live on in the traceback of an error that Dynamo
swallows. When that is let go of, torch's state is set to what it was at that time: inside of a capture, where somebody
sets it right again, or after it, and then the function runs in the wrong state. Which of both depends on when Python's
garbage collector comes by, and so on how much was allocated, by us as well. So nothing is collected during a capture:
what the compiler leaves broken is not for the watch to mend.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from types import CodeType

from torchsleuth.core.protocol.failures import GivenUp
from torchsleuth.script_runtime.hiding import hide_secrets
from torchsleuth.torch_internals.frames import original_function
from torchsleuth.torch_internals.modes import thread_state

# Some 50 MB of small objects; a capture that makes more of them is collected as ever.
MOST_OBJECTS = 200_000
MOST_REASON = 200
# What torch says where the traced code raises, which alone says nothing.
_RAISED = "Observed exception"
_CONTEXT = "Developer debug context:"


class Capture:
    """`with capture.kept(): ...` around the look, `failed` by whoever sees the compile fail, then `given_up`."""

    def __init__(self) -> None:
        self._failed: tuple[tuple[str, str, int], str] | None = None
        self._left: tuple[str, ...] = ()

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """No collection in here; what a capture that was given up has changed in this thread is noted."""
        thresholds = gc.get_threshold()
        state = thread_state()
        if thresholds[0]:  # 0 stands for no collections at all
            gc.set_threshold(max(MOST_OBJECTS, thresholds[0]), *thresholds[1:])
        try:
            yield
            if self._failed is not None:
                now = thread_state()
                self._left = tuple(name for name in state if state[name] != now[name])
        finally:
            gc.set_threshold(*thresholds)

    def failed(self, code: CodeType, error: Exception) -> None:
        """The frame of `code` could not be compiled; `error` itself is not kept, as it would keep more than itself."""
        self._failed = original_function(code), hide_secrets(reason_of(error))

    def given_up(self) -> GivenUp | None:
        """What was given up; None where the frame was compiled, or there was nothing in it to compile."""
        if self._failed is None:
            return None
        return GivenUp(*self._failed[0], reason=self._failed[1], left=self._left)


def reason_of(error: Exception) -> str:
    """In one line, why Dynamo could not capture something.

    >>> reason_of(RuntimeError("Dynamic control flow\\n  Explanation: ..."))
    'Dynamic control flow'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = lines[0] if lines else type(error).__name__
    context = next((line for line in lines if line.startswith(_CONTEXT)), None)
    if first == _RAISED and context is not None:
        first = context.removeprefix(_CONTEXT).strip() or first
    return first[:MOST_REASON]
