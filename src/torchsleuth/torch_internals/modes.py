"""Torch's interception modes, seen from code of ours that runs in the middle of someone else's."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack


def outside_all_modes() -> AbstractContextManager[object]:
    """A context in which no fake-tensor, proxy or other dispatch mode of the caller sees what we do.

    >>> with outside_all_modes():
    ...     pass
    """
    from torch._C import DisableTorchFunctionSubclass
    from torch.utils._python_dispatch import _disable_current_modes

    stack = ExitStack()
    stack.enter_context(_disable_current_modes())
    stack.enter_context(DisableTorchFunctionSubclass())
    return stack
