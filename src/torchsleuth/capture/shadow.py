"""Checks a compiled graph's result against eager, in the call that the program itself makes.

The program's call runs once, on its own inputs, and its result is what the program gets. Eager runs beside it
on copies taken before, with the same random numbers; the verdict of `compare` says whether they differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from torchsleuth.capture import failures
from torchsleuth.capture.settings import Settings

if TYPE_CHECKING:
    from torchsleuth.capture.guard import GuardedGraph

# Some wrong results show from the second call on only: stale buffers, recorded CUDA graphs.
CHECKED_CALLS = 3


def is_due(settings: Settings, calls: int) -> bool:
    """Whether the `calls`-th call of a graph is one to check.

    >>> is_due(Settings(spool="", level=4), 1), is_due(Settings(spool="", level=4), 50)
    (True, False)
    """
    if not settings.checks_accuracy:
        return False
    if settings.check_every:
        return calls % settings.check_every == 1 % settings.check_every
    return calls <= CHECKED_CALLS


def checked_call(graph: GuardedGraph, compiled: Callable[..., Any], args: Sequence[Any], boxed: bool) -> Any:
    return compiled(args) if boxed else compiled(*args)
