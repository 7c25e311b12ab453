"""Faults a compiler might make, planted in a copy of a graph: the set on which detection is counted.

The idea: a fault is a small edit of one node, so the true effect is known (run both graphs in float64), and
a fault counts as visible only when that effect stands out of the format's own resolution.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.nn import functional as F

from torchsleuth.torch_core.compare.reference.cloning import map_tensors
from torchsleuth.torch_core.compare.reference.float64 import wide_dtype, widen_graph, widen_inputs
from torchsleuth.torch_core.compare.reference.opkinds import plain_name

VISIBLE_ULPS = 16
"""A fault is visible when its largest true effect on an output exceeds this many ulps of that output's rms."""


@dataclass(frozen=True)
class Fault:
    """One planted fault: what kind, at which node, and the graph that has it."""

    kind: str
    node: str
    graph: GraphModule


Plant = Callable[[Graph, Node, random.Random], bool]
"""Edit a graph copy at a node; False when the fault does not apply there."""


def faults(graph: GraphModule, rng: random.Random, dtype: torch.dtype, per_kind: int = 2) -> Iterator[Fault]:
    """Faulty copies of a graph, at most `per_kind` of each kind at random nodes.

    Example: `for fault in faults(case.graph, random.Random(0), torch.float32): fault.graph(*case.inputs)`.
    """
    names = [n.name for n in graph.graph.nodes if n.op == "call_function"]
    for kind, plant in KINDS.items():
        if kind == "precision leak" and dtype != torch.float32:
            continue
        planted = 0
        for name in rng.sample(names, len(names)):
            if planted == per_kind:
                break
            twin = copy.deepcopy(graph)
            node = next(n for n in twin.graph.nodes if n.name == name)
            if plant(twin.graph, node, rng):
                twin.recompile()
                planted += 1
                yield Fault(kind, name, twin)


def effect_in_ulps(
    fault: GraphModule, graph: GraphModule, inputs: Sequence[Any], dtype: torch.dtype
) -> float:
    """The largest true effect of a fault over all float outputs, in ulps of the output's rms."""
    wide = widen_inputs(inputs)
    healthy, faulty = widen_graph(graph)(*wide), widen_graph(fault)(*wide)
    worst = 0.0
    for good, bad in zip(healthy, faulty):
        if not good.is_floating_point():
            continue
        size = good.square().mean().sqrt()
        ulp = torch.finfo(dtype).eps * torch.exp2(torch.floor(torch.log2(size)))
        worst = max(worst, float((good - bad).abs().max() / ulp))
    return worst


def run_fused(graph: GraphModule, inputs: Sequence[Any], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Run a graph as a fusing compiler would: intermediates in float32, rounded to their dtype at the end."""
    wide = widen_graph(graph)
    for node in wide.graph.nodes:
        node.args = _swap_dtype(node.args)
        node.kwargs = _swap_dtype(node.kwargs)
    wide.recompile()
    outputs = wide(*map_tensors(list(inputs), lambda t: t.float() if t.is_floating_point() else t))
    return tuple(o.to(dtype) if o.is_floating_point() else o for o in outputs)


def _swap_dtype(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return torch.float32 if value == torch.float64 else value
    if isinstance(value, (list, tuple)):
        return type(value)(_swap_dtype(v) for v in value)
    if isinstance(value, dict):
        return {k: _swap_dtype(v) for k, v in value.items()}
    return value


def _after(graph: Graph, node: Node, step: Callable[[torch.Tensor], torch.Tensor], name: str) -> bool:
    step.__name__ = step.__qualname__ = name
    users = list(node.users)
    with graph.inserting_after(node):
        added = graph.call_function(step, (node,))
    for user in users:
        user.replace_input_with(node, added)
    return bool(users)


def _makes_float(node: Node) -> bool:
    return plain_name(node) not in ("gt", "argmax", "t", "roll", "flip")


def _wrong_element(graph: Graph, node: Node, rng: random.Random) -> bool:
    if not _makes_float(node):
        return False
    place, factor = rng.random(), 10 ** rng.uniform(-3, 0)

    def spoil(value: torch.Tensor) -> torch.Tensor:
        spoilt = value.clone()
        flat = spoilt.view(-1)
        size = value.double().square().mean().sqrt()
        flat[int(place * flat.numel())] += (factor * size).to(value.dtype)
        return spoilt

    return _after(graph, node, spoil, f"wrong_element_{node.name}")


def _wrong_lane(graph: Graph, node: Node, rng: random.Random) -> bool:
    if not _makes_float(node):
        return False

    def spoil(value: torch.Tensor) -> torch.Tensor:
        spoilt = value.clone()
        spoilt[..., -1] = 0.0
        return spoilt

    return _after(graph, node, spoil, f"wrong_lane_{node.name}")


def _scaled(graph: Graph, node: Node, rng: random.Random) -> bool:
    if not _makes_float(node):
        return False

    def spoil(value: torch.Tensor) -> torch.Tensor:
        return value * 1.01

    return _after(graph, node, spoil, f"scaled_{node.name}")


def _biased_variance(graph: Graph, node: Node, rng: random.Random) -> bool:
    if plain_name(node) != "var":
        return False
    node.kwargs = {**node.kwargs, "correction": 0}
    return True


def _wrong_epsilon(graph: Graph, node: Node, rng: random.Random) -> bool:
    if plain_name(node) != "layer_norm":
        return False
    node.args = (*node.args[:4], rng.choice([1e-3, 1e-2]))
    return True


def _dropped_element(graph: Graph, node: Node, rng: random.Random) -> bool:
    if plain_name(node) not in ("sum", "mean", "logsumexp", "amax", "var"):
        return False
    axis = node.args[1]
    source = node.args[0]
    assert isinstance(source, Node)

    def shorten(value: torch.Tensor) -> torch.Tensor:
        return value.narrow(axis, 0, value.shape[axis] - 1)

    shorten.__name__ = shorten.__qualname__ = f"shorten_{node.name}"
    with graph.inserting_before(node):
        shorter = graph.call_function(shorten, (source,))
    node.replace_input_with(source, shorter)
    return True


def _approximate_gelu(graph: Graph, node: Node, rng: random.Random) -> bool:
    if node.target is not F.gelu or node.kwargs.get("approximate") != "none":
        return False
    node.kwargs = {"approximate": "tanh"}
    return True


def _precision_leak(graph: Graph, node: Node, rng: random.Random) -> bool:
    if not _makes_float(node):
        return False

    def spoil(value: torch.Tensor) -> torch.Tensor:
        return value.to(torch.bfloat16).to(
            wide_dtype(value.dtype) if value.dtype == torch.float64 else value.dtype
        )

    return _after(graph, node, spoil, f"leak_{node.name}")


KINDS: dict[str, Plant] = {
    "wrong element": _wrong_element,
    "wrong lane": _wrong_lane,
    "biased variance": _biased_variance,
    "wrong epsilon": _wrong_epsilon,
    "scaled": _scaled,
    "dropped reduction element": _dropped_element,
    "approximate GELU": _approximate_gelu,
    "precision leak": _precision_leak,
}
