"""Parameters and buffers that a captured graph holds itself, and their copies in the graph that eager runs."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class HeldTensors:
    """Each tensor of the eager copy beside the program's own, which a training step may change at any time."""

    pairs: tuple[tuple[torch.Tensor, weakref.ref[torch.Tensor]], ...] = ()

    @staticmethod
    def between(eager: torch.fx.GraphModule, graph: torch.fx.GraphModule) -> HeldTensors:
        """Pairs a copy of a graph with that graph: `HeldTensors.between(copy.deepcopy(graph), graph)`."""
        own = dict(_tensors(graph))
        pairs = [(tensor, own.get(name)) for name, tensor in _tensors(eager)]
        return HeldTensors(tuple((copy, weakref.ref(t)) for copy, t in pairs if t is not None))

    def take_values(self) -> None:
        """The copies become what the program's tensors are now; to be called under `no_grad`."""
        for copy, reference in self.pairs:
            tensor = reference()
            if tensor is not None and tensor.shape == copy.shape:
                copy.copy_(tensor)

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """What a call inside changes of the program's tensors is changed back."""
        before = [(t, t.detach().clone(), t._version) for t in self.of_program().values()]
        try:
            yield
        finally:
            for tensor, values, version in before:
                if tensor._version != version:
                    tensor.data.copy_(values)  # as data: what autograd has saved is not out of date

    def of_program(self) -> dict[int, torch.Tensor]:
        """The program's own tensors by the `id` of their copies."""
        found = ((id(copy), reference()) for copy, reference in self.pairs)
        return {key: tensor for key, tensor in found if tensor is not None}


def _tensors(graph: torch.fx.GraphModule) -> Iterator[tuple[str, torch.Tensor]]:
    return itertools.chain(graph.named_parameters(), graph.named_buffers())
