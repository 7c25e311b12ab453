"""The state of every random number generator a model may draw from, saved and put back.

The idea: two runs draw the same numbers when they start from the same saved state, whatever ran between.
numpy's generator is included only when the program has loaded numpy.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class RngState:
    """The states of torch (CPU and every CUDA device in use), Python and numpy."""

    cpu: torch.Tensor
    cuda: tuple[torch.Tensor, ...]
    python: Any
    numpy: Any


def save_rng() -> RngState:
    """The present state of all generators; an unused CUDA is left untouched.

    Example: `state = save_rng(); run_eager(); restore_rng(state); run_compiled()`.
    """
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    numpy = sys.modules.get("numpy")
    return RngState(
        torch.get_rng_state(),
        tuple(cuda),
        random.getstate(),
        numpy.random.get_state() if numpy is not None else None,
    )


def restore_rng(state: RngState) -> None:
    """Put every generator back to `state`."""
    torch.set_rng_state(state.cpu)
    if state.cuda:
        torch.cuda.set_rng_state_all(list(state.cuda))
    random.setstate(state.python)
    numpy = sys.modules.get("numpy")
    if numpy is not None and state.numpy is not None:
        numpy.random.set_state(state.numpy)


@contextlib.contextmanager
def rng_kept() -> Iterator[RngState]:
    """Whatever is drawn inside leaves no trace outside."""
    state = save_rng()
    try:
        yield state
    finally:
        restore_rng(state)
