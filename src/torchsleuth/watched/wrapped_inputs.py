"""Inputs that wrap other tensors (quantised weights, pairs): a graph that is given the tensors inside of them.

For the record alone. Each such input becomes the tensors that its `__tensor_flatten__` names, to the innermost, and one
call that makes it of them, which is a function of the program's like any other: what is made smaller are plain tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchsleuth.watched.call_state import PLAIN_TENSORS


@dataclass(frozen=True)
class Made:
    """How a tensor that wraps others is made: by which class, of which attributes (themselves made, or as given)."""

    kind: type
    parts: tuple[tuple[str, Made | None], ...]
    about: Any
    size: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def names(self) -> list[str]:
        """The plain tensors, in the order in which they are given: `["data_int8", "scale"]`."""
        return [
            f"{part}_{inner}" if inner else part
            for part, made in self.parts
            for inner in (made.names if made is not None else [""])
        ]


class Maker:
    """Stands in a graph for the call that makes a tensor of those inside of it; it is written, never called."""

    def __init__(self, made: Made, name: str) -> None:
        self.made = made
        self.__name__ = name

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


Plain = Callable[[Sequence[Any]], list[Any]]


def with_plain_inputs(
    graph: torch.fx.GraphModule, inputs: Sequence[Any]
) -> tuple[torch.fx.GraphModule, Plain | None]:
    """A graph that takes the tensors inside of its inputs, and what makes those of arguments of the graph itself.

    Where no input wraps others that is the graph as it is, and None.
    """
    places = {n: made for n, value in enumerate(inputs) if (made := _made(value)) is not None}
    if not places:
        return graph, None
    taken: dict[torch.fx.Node, torch.fx.Node] = {}
    plain = torch.fx.Graph()
    given = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for place, node in enumerate(given):
        made = places.get(place)
        if made is None:
            taken[node] = plain.node_copy(node, taken.__getitem__)
            continue
        fakes = dict(zip(made.names, _leaves(node.meta.get("example_value"), made)))
        inside = []
        for name in made.names:
            inside.append(plain.placeholder(f"{node.name}_{name}"))
            inside[-1].meta["example_value"] = fakes.get(name)
        taken[node] = (node, inside, made)
    for node in given:
        if isinstance(taken[node], tuple):
            source, inside, made = taken[node]
            maker = Maker(made, f"make_{source.name.strip('_')}")
            taken[node] = plain.create_node("call_function", maker, tuple(inside), name=source.name)
            taken[node].meta = dict(source.meta)
    for node in graph.graph.nodes:
        if node.op != "placeholder":
            taken[node] = plain.node_copy(node, taken.__getitem__)
    return torch.fx.GraphModule(graph, plain), functools.partial(_flat, places)


def _made(value: Any) -> Made | None:
    """How a value is made of tensors inside of it; None of one that is none, or plain."""
    if not isinstance(value, torch.Tensor) or type(value) in PLAIN_TENSORS:
        return None
    cls = type(value)
    if not hasattr(cls, "__tensor_flatten__") or not hasattr(cls, "__tensor_unflatten__"):
        return None
    names, about = value.__tensor_flatten__()
    parts = tuple((name, _made(getattr(value, name))) for name in names)
    sizes = [int(size) for size in value.shape], [int(size) for size in value.stride()]
    return Made(cls, parts, about, tuple(sizes[0]), tuple(sizes[1]))


def _leaves(value: Any, made: Made) -> Iterator[Any]:
    for name, inner in made.parts:
        part = getattr(value, name, None)
        yield from [part] if inner is None else _leaves(part, inner)


def _flat(places: dict[int, Made], values: Sequence[Any]) -> list[Any]:
    """The arguments of a call, those that wrap others as what is in them."""
    flat: list[Any] = []
    for place, value in enumerate(values):
        flat += [value] if place not in places else _leaves(value, places[place])
    return flat
