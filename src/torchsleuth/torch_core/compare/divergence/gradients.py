"""A gradient that is wrong though all values of the forward are right: the call whose gradient it is.

AOTAutograd writes the backward of a captured graph and parts it from the forward. Where that goes wrong, both graphs
agree with what they say, so no generated code shows it. What is left is to take some calls of the captured graph by
themselves, on eager's values, to compile them with their backward and to judge the gradients; by halves, the later half
first, because a backward begins at the end.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchsleuth.torch_core.compare.divergence.analysis import culprit
from torchsleuth.torch_core.compare.divergence.distance import Distance
from torchsleuth.torch_core.compare.divergence.parts import Compilers, Inside, Part, Whole
from torchsleuth.torch_core.compare.divergence.steps import writes_what_is_read
from torchsleuth.torch_core.compare.reference.eager import EagerRun
from torchsleuth.torch_core.compare.verdict.gradients import judge_gradients
from torchsleuth.torch_core.compare.verdict.verdict import DIVERGED, LeafVerdict

PHASE = "gradients"
# How the culprit was found: wrong with eager's kernels as well, or only as compiled.
OF_AOTAUTOGRAD, OF_CODE = "gradients", "compiled gradients"
OF_GRADIENTS = "outputs[1]"
"""Where `judge_gradients` puts the gradients, behind the outputs."""


@dataclass(frozen=True)
class _Wrong:
    """Calls whose gradients are wrong by themselves, and the first of these gradients."""

    calls: Sequence[str]
    leaf: LeafVerdict


def wrong_gradient(
    graph: GraphModule,
    inputs: Sequence[Any],
    ways: Compilers,
    tell: Callable[[Mapping[str, Any]], None],
    drawn: EagerRun | None = None,
    without_code: Compilers | None = None,
) -> dict[str, Any] | None:
    """The part `culprit` of an answer; None where no gradient is wrong, or the graph cannot be cut.

    `ways` compile a captured graph with its backward, `without_code` does so with eager's kernels: AOTAutograd alone.
    Used as `wrong_gradient(graph, [x], ways, print)["node"]`.
    """
    if writes_what_is_read(graph):
        return None
    whole = Whole(graph, inputs, ways, drawn)
    differentiable = _differentiable(graph, inputs)
    groups = _groups(graph)
    tried = 0

    def wrong(first: int, last: int) -> _Wrong | None:
        nonlocal tried
        tell({"phase": PHASE, "done": tried, "of": 2 * len(groups).bit_length()})
        tried += 1
        chosen = {name for group in groups[first:last] for name in group}
        names = [name for name in whole.nodes if name in chosen]
        return _judged(whole, names, differentiable)

    low, high = 0, len(groups)
    found = wrong(low, high)
    if found is None:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if (later := wrong(middle, high)) is not None:
            low, found = middle, later
        elif (earlier := wrong(low, middle)) is not None:
            high, found = middle, earlier
        else:
            break
    alone = without_code is not None and _judged(
        replace(whole, ways=without_code), found.calls, differentiable
    )
    return _described(whole, found, OF_AOTAUTOGRAD if alone else OF_CODE)


def _described(whole: Whole, found: _Wrong, how: str) -> dict[str, Any]:
    named = [name for name in found.calls if whole.nodes[name].target is not operator.getitem]
    leaf = found.leaf
    off, noise = (
        abs(value - leaf.truth) if isinstance(value, float) and isinstance(leaf.truth, float) else 0.0
        for value in (leaf.compiled, leaf.eager)
    )
    distance = Distance(off, noise, leaf.z or 0.0)
    return culprit(whole.nodes, named[-1], named, distance, Inside(True, named[-1], how, leaf.sentence))


def _differentiable(graph: GraphModule, given: Sequence[Any]) -> set[str]:
    """The nodes through which a gradient may flow."""
    values = dict(zip((n for n in graph.graph.nodes if n.op == "placeholder"), given))
    found: set[str] = set()
    for node in graph.graph.nodes:
        wants = isinstance(values.get(node), torch.Tensor) and values[node].requires_grad
        if wants or any(source.name in found for source in node.all_input_nodes):
            found.add(node.name)
    return found


def _groups(graph: GraphModule) -> list[list[str]]:
    """The calls in order, each with those that take its result apart: a tuple cannot be handed to another part."""
    groups: dict[Node, list[str]] = {}
    for node in graph.graph.nodes:
        if not node.op.startswith("call_"):
            continue
        source = node.args[0] if node.target is operator.getitem else None
        owner = next((n for n, names in groups.items() if source is not None and source.name in names), node)
        groups.setdefault(owner, []).append(node.name)
    return list(groups.values())


def _judged(whole: Whole, calls: Sequence[str], differentiable: Collection[str]) -> _Wrong | None:
    """What is wrong with the gradients of these calls; None where nothing is, or they cannot be run by themselves."""
    returned = [
        name
        for name in calls
        if name in differentiable and any(user.name not in calls for user in whole.nodes[name].users)
    ]
    try:
        with torch.no_grad():
            part = _leaves(whole.part(calls, returned), differentiable)
        run = whole.ways.compiled(part.graph, list(part.inputs))
        with torch.enable_grad():
            verdict = judge_gradients(
                part.graph, list(part.inputs), lambda *values: run(list(values)), rng_matched=True
            )
    except Exception:  # what a part returns may not be differentiable, and a compiler may refuse a part
        return None
    leaves = [leaf for leaf in verdict.leaves if leaf.path.startswith(OF_GRADIENTS) and leaf.kind == DIVERGED]
    return _Wrong(calls, leaves[0]) if leaves else None


def _leaves(part: Part, differentiable: Collection[str]) -> Part:
    """The part with inputs that ask for their gradients."""
    names = [node.name for node in part.graph.graph.nodes if node.op == "placeholder"]
    given = [
        value.detach().requires_grad_(name in differentiable and value.is_floating_point())
        for name, value in zip(names, part.inputs)
    ]
    return replace(part, inputs=tuple(given))
