"""Random numbers: the state of every generator a model may draw from, saved and put back, and what a run drew.

The idea: two runs draw the same numbers when they start from the same saved state and ask for them in the same order
and layouts. A compiler may choose others; so what it drew is noted, operator by operator, and can be handed over.
numpy's generator is included only when the program has loaded numpy.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torchsleuth.torch_internals.modes import watching_ops
from torchsleuth.torch_internals.operators import short_name


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


def same_state(one: RngState, other: RngState) -> bool:
    """Whether all generators stand at the same place.

    >>> same_state(save_rng(), save_rng())
    True
    """
    if not torch.equal(one.cpu, other.cpu) or len(one.cuda) != len(other.cuda):
        return False
    return all(torch.equal(a, b) for a, b in zip(one.cuda, other.cuda)) and one.python == other.python


@dataclass(frozen=True)
class Draw:
    """One call of an operator that draws random numbers: its name, and what it gave, of a dropout its mask.

    It is kept in main memory: code that gets ready for a CUDA graph must not leave anything of others in its pool.
    """

    name: str
    kept: torch.Tensor | None
    """None where it could not be kept: a CUDA graph was being recorded."""
    device: torch.device

    @property
    def value(self) -> torch.Tensor | None:
        """What was drawn, where it was drawn."""
        return self.kept if self.kept is None else self.kept.to(self.device)


@contextlib.contextmanager
def noting_draws(draws: list[Draw]) -> Iterator[None]:
    """Notes in `draws` what operators draw inside; kernels that draw without an operator of torch's go unnoticed.

    >>> draws = []
    >>> with noting_draws(draws):
    ...     kept = torch.nn.functional.dropout(torch.ones(3), 0.5)
    >>> [draw.name for draw in draws]
    ['bernoulli']
    """

    def note(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: Callable[[], Any]) -> Any:
        value = call()
        if torch.Tag.nondeterministic_seeded in op.tags:
            drawn = value[1] if isinstance(value, (tuple, list)) else value
            recording = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
            known = isinstance(drawn, torch.Tensor) and not recording
            name = short_name(op).rstrip("_")
            kept = drawn.detach().to("cpu", copy=True) if known else None
            draws.append(Draw(name, kept, drawn.device if known else torch.device("cpu")))
        return value

    with watching_ops(note):
        yield
