"""Copies of tensors that go into call after call, taken once: a model's weights are most of what its graphs are given.

A copy is given again only while it has the tensor's bits, so whoever changed the tensor meanwhile gets a new one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torchsleuth.torch_core.compare.reference.cloning import (
    Snapshot,
    clone_inputs,
    has_plain_memory,
    same_bits,
)
from torchsleuth.torch_core.compare.reference.written import alone_in_memory, memory_of

Place = tuple[Any, ...]


class KeptCopies:
    """Copies of the values that a graph is given, which nobody may write; those of `taken` are at hand.

    Used as `KeptCopies(snapshot(weights)).of([x, *weights])`.
    """

    def __init__(self, taken: Snapshot) -> None:
        self._of_weights = {
            _place(t): c for t, c in zip(taken.originals, taken.copies) if has_plain_memory(t)
        }
        self._known = dict(self._of_weights)

    def of(self, values: Sequence[Any]) -> list[Any]:
        """For each value one like it, in memory of its own."""
        found = {place: self._at_hand(values[place]) for place in alone_in_memory(values)}
        rest = [place for place in range(len(values)) if found.get(place) is None]
        found |= dict(zip(rest, clone_inputs([values[place] for place in rest])))
        return [found[place] for place in range(len(values))]

    def weights_among(self, values: Sequence[Any]) -> list[int]:
        """The positions of those of which a copy was at hand from the beginning."""
        return [place for place in alone_in_memory(values) if _place(values[place]) in self._of_weights]

    @contextlib.contextmanager
    def remembered(self, values: Sequence[Any], copies: Sequence[Any]) -> Iterator[None]:
        """Inside, these copies are at hand, too: for the graphs that are made of one."""
        before = self._known
        pairs = {_place(values[place]): copies[place] for place in alone_in_memory(values)}
        self._known = {**before, **pairs}
        try:
            yield
        finally:
            self._known = before

    def _at_hand(self, value: torch.Tensor) -> torch.Tensor | None:
        copy = self._known.get(_place(value))
        computed = value.requires_grad and not value.is_leaf
        if copy is None or computed or not same_bits(value, copy):
            return None
        if isinstance(value, torch.nn.Parameter):
            return torch.nn.Parameter(copy.detach(), requires_grad=value.requires_grad)
        return copy.detach().requires_grad_(value.requires_grad)


@contextlib.contextmanager
def called_again(
    live: Sequence[Any], before: Sequence[Any], weights: Sequence[int]
) -> Iterator[Callable[[], list[Any]]]:
    """Makes the inputs of one more call: the model's own weights as they lie in memory, the others as copies.

    Whatever a call writes into weights is taken back before the next, and at the end. Used as
    `with called_again(given, copies, weights) as fresh: compiled(fresh())`.
    """
    at_end = [copy if same_bits(live[i], copy) else live[i].clone() for i in weights for copy in (before[i],)]

    def fresh() -> list[Any]:
        _put([live[i] for i in weights], [before[i] for i in weights])
        others = [i for i in range(len(live)) if i not in weights]
        given = dict(zip(others, clone_inputs([before[i] for i in others])))
        return [given[i] if i in given else live[i] for i in range(len(live))]

    try:
        yield fresh
    finally:
        _put([live[i] for i in weights], at_end)


def _put(tensors: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Gives tensors these values where they have others; autograd, which may have kept them, is not told."""
    with torch.no_grad():
        for tensor, value in zip(tensors, values):
            if not same_bits(tensor, value):
                tensor.data.copy_(value)


def _place(tensor: torch.Tensor) -> Place:
    """What two tensors have in common that are the same elements of the same memory."""
    layout = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
    return (tensor.device, memory_of(tensor), *layout)
