"""A name for a graph's structure, equal for two compilations of one program.

It keeps what is called, on what, in what order, and forgets names, metadata and numbers: sizes differ between two
compilations.
"""

import hashlib
from collections.abc import Mapping

import torch

from torchsleuth.torch_core.graphs.attributes import held_value
from torchsleuth.torch_core.graphs.spelling import Vocabulary


def structural_hash(gm: torch.fx.GraphModule) -> str:
    """A hex digest of what the graph calls and how the calls connect, without names, numbers or shapes.

    >>> structural_hash(gm) == structural_hash(read_graph(print_graph(gm).source))
    True
    """
    digest = hashlib.sha256()
    _feed(gm, digest, Vocabulary(set()), [])
    return digest.hexdigest()


def in_order(gm: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """Inputs first: Inductor puts effect tokens before them, where printed source cannot."""
    return sorted(gm.graph.nodes, key=lambda node: node.op != "placeholder")


def _feed(gm: torch.fx.GraphModule, digest: "hashlib._Hash", words: Vocabulary, seen: list[int]) -> None:
    if id(gm) in seen:
        digest.update(f"graph {seen.index(id(gm))};".encode())
        return
    seen.append(id(gm))
    position: dict[torch.fx.Node, int] = {}
    for number, node in enumerate(in_order(gm)):
        position[node] = number
        digest.update(f"{node.op} ".encode())
        if node.op in ("get_attr", "call_module"):
            value = held_value(gm, str(node.target))
            if isinstance(value, torch.fx.GraphModule):
                _feed(value, digest, words, seen)
            else:
                digest.update(_kind(value).encode())
        elif node.op != "placeholder":
            name = node.target if isinstance(node.target, str) else words.spell(node.target)
            digest.update(str(name or type(node.target)).encode())
        digest.update((_shape_of((node.args, dict(node.kwargs)), position) + ";").encode())


def _kind(value: object) -> str:
    return f"tensor {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__


def _shape_of(value: object, position: Mapping[torch.fx.Node, int]) -> str:
    if isinstance(value, torch.fx.Node):
        return f"%{position[value]}"
    if isinstance(value, list | tuple):
        return f"[{','.join(_shape_of(item, position) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{_shape_of(item, position)}' for key, item in value.items())}}}"
    if isinstance(value, slice):
        return f"slice{_shape_of((value.start, value.stop, value.step), position)}"
    if isinstance(value, str | torch.dtype | torch.layout | torch.memory_format):
        return str(value)
    return type(value).__name__
