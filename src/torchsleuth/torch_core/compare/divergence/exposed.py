"""The analysis of a graph whose compiled code shows no values: it is compiled once more with every value returned.

That changes what is fused with what, so it is said. The first value that is wrong though those it is made of are right
is the culprit's; where there are several, the first without which the results are right.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch.fx import GraphModule

from torchsleuth.torch_core.compare.divergence.analysis import operator_of
from torchsleuth.torch_core.compare.divergence.distance import distance
from torchsleuth.torch_core.compare.divergence.parts import (
    MOST_BEGINNINGS,
    Compilers,
    beginnings,
    calls_between,
    look_inside,
    part_of,
    right_without,
)
from torchsleuth.torch_core.compare.divergence.steps import EagerMemory, EagerSteps, Float64Steps
from torchsleuth.torch_core.compare.reference.eager import EagerRun

HOW = "every value returned, which changes fusion"


def analyze_exposed(
    graph: GraphModule,
    inputs: Sequence[Any],
    ways: Compilers,
    tell: Callable[[Mapping[str, Any]], None],
    why: str,
    drawn: EagerRun | None = None,
) -> dict[str, Any]:
    """The parts of the answer, as `analysis.analyze` gives them; `why` says why the code itself shows nothing."""
    started = time.monotonic()
    calls = [n.name for n in graph.graph.nodes if n.op.startswith("call_")]
    memory = EagerMemory()
    tensors = _tensors(graph, inputs, calls, drawn, memory)
    tell({"phase": "accumulated", "done": 0, "of": len(tensors)})
    part = part_of(graph, inputs, calls, tensors, drawn, memory)
    results = ways.compiled(part.graph, list(part.inputs))([*inputs_of(part.inputs)])
    eager = EagerSteps(graph, inputs, tensors, drawn, memory)
    truth = Float64Steps(graph, inputs, tensors, eager.dtypes, drawn)
    rows = []
    with torch.no_grad():
        for place, (name, compiled) in enumerate(zip(tensors, results)):
            known = eager.value(name)
            if (
                isinstance(compiled, torch.Tensor)
                and compiled.shape == known.shape
                and compiled.dtype == known.dtype
            ):
                off = distance(compiled.detach(), known, truth.value(name), eager.terms(name))
                rows.append((name, off))
            eager.done(name)
            truth.done(name)
            tell({"phase": "accumulated", "done": place + 1, "of": len(tensors)})
    nodes = {n.name: n for n in graph.graph.nodes}
    told = [{"node": name, "op": operator_of(nodes[name]), "kernel": "", **asdict(off)} for name, off in rows]
    parts: dict[str, Any] = {
        "seen": {"calls": len(calls), "seen": len(rows), "why_not": f"{why}; seen with {HOW}"},
        "accumulated": told,
        "seconds": {},
    }
    far = {name: off for name, off in rows if off.far}
    begin = beginnings(graph, far, dict(rows)) if far else []
    culprit = None
    if begin:
        name, recovers = begin[0], None
        for each in begin[:MOST_BEGINNINGS] if len(begin) > 1 else ():
            right = right_without(graph, inputs, calls, each, ways, drawn, memory)
            recovers = right if each == name else recovers
            if right:
                name, recovers = each, True
                break
        off = far[name]
        between = calls_between(graph, name, set(tensors))
        inside = look_inside(graph, inputs, name, between, ways, drawn, memory)
        culprit = {
            "node": inside.node or name,
            "op": operator_of(nodes[inside.node or name]),
            "seen_at": name,
            "kernel": "",
            "calls": [name],
            **asdict(off),
            "confirmed": inside.diverges,
            "how": inside.how,
            "verdict": inside.sentence,
            "recovers": recovers,
            "also": [],
        }
    parts["culprit"] = culprit
    parts["seconds"]["accumulated"] = round(time.monotonic() - started, 3)
    for key, value in parts.items():
        tell({"part": key, "value": value})
    return parts


def inputs_of(values: Sequence[Any]) -> list[Any]:
    """A fresh copy of each tensor: a compiled function may write into what it is given."""
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in values]


def _tensors(
    graph: GraphModule,
    given: Sequence[Any],
    calls: Sequence[str],
    drawn: EagerRun | None,
    memory: EagerMemory,
) -> list[str]:
    steps = EagerSteps(graph, given, calls, drawn, memory)
    found = []
    with torch.no_grad():
        for name in calls:
            if isinstance(steps.value(name), torch.Tensor):
                found.append(name)
            steps.done(name)
    return found
