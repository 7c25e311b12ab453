"""Memory that a graph asks for and does not write, or not all of it: eager, too, finds anything in it.

A run with such memory full of zeros is the reference; where another with something else in it gives other values, they
come from that memory, and are not to be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchsleuth.torch_core.compare.reference.float64 import widen
from torchsleuth.torch_core.compare.reference.opkinds import plain_name

_MAKES = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}
# What no program writes by itself, and what does not disappear beside other numbers.
_OTHER = 1.7e30


def filled_memory(graph: GraphModule, zeros: bool) -> dict[str, Callable[..., Any]]:
    """For each call that only asks for memory, a function that gives it full of zeros, or of something else.

    >>> list(filled_memory(torch.fx.symbolic_trace(lambda x: x.new_empty(2) + x), zeros=True))
    ['new_empty']
    """
    return {node.name: _filled(node, zeros) for node in graph.graph.nodes if plain_name(node) in _MAKES}


def _filled(node: Node, zeros: bool) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        if node.op == "call_method":
            memory = getattr(args[0], str(node.target))(*args[1:], **kwargs)
        else:
            memory = node.target(*args, **kwargs)
        wide = memory.is_floating_point() or memory.is_complex()
        return widen(memory.fill_(0 if zeros else _OTHER if wide else 1))

    return make


def of_unwritten_memory(values: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """By path, which elements are others where the memory holds something else; paths without any are left out.

    >>> of_unwritten_memory({"a": torch.tensor([1.0, 2.0])}, {"a": torch.tensor([1.0, 3.0])})
    {'a': tensor([False,  True])}
    """
    found = {}
    for path, value in values.items():
        other = others.get(path)
        if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor):
            if value.shape != other.shape:
                found[path] = torch.ones_like(value, dtype=torch.bool)
                continue
            differs = (value != other) & ~((value != value) & (other != other))
            if bool(differs.any()):
                found[path] = differs
    return found
