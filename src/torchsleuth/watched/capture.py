"""One look of Dynamo's at a frame: what it gave the function up for, and what it left behind.

A capture that fails may leave torch's state changed: what set it, for as long as it lives, lives on in the traceback of an
error that was swallowed. That lasts until Python's garbage collector comes by, which depends on how much was
allocated, by us as well. So that a program fails under watch as it does without, nothing is collected during a
capture, and what is left behind then stays: what the compiler left broken is not for the watch to mend.
"""

from __future__ import annotations

import atexit
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
        """No collection in here; what a capture that was given up has changed in this thread stays changed after it."""
        thresholds = gc.get_threshold()
        state = thread_state()
        if thresholds[0]:  # 0 stands for no collections at all
            gc.set_threshold(max(MOST_OBJECTS, thresholds[0]), *thresholds[1:])
        try:
            yield
            if self._failed is not None:
                now = thread_state()
                self._left = tuple(name for name in state if state[name] != now[name])
                if self._left and not gc.get_freeze_count():
                    atexit.register(gc.unfreeze)
                if self._left:
                    gc.freeze()
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
