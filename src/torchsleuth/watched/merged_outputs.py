"""Graphs whose compiler gives one tensor where eager gives several, or several where eager gives one.

The numbers are the same, and mostly nobody notices. What is done to one of them afterwards, though, is then done to
another one as well: a size, an attribute, a flag. So this is no finding, but a reason to look at what the call as a
whole leaves behind.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchsleuth.core.cases.record import GraphRecord
from torchsleuth.torch_core.compare.reference.trees import leaves

Values = tuple[Any, Any]  # inputs and outputs of one call of a graph


@dataclass(frozen=True)
class MergedOutputs:
    """A graph with such outputs: for which backend, and the user's line that made the last of them."""

    backend: str
    line: tuple[str, int] | None = None


def merged_outputs(
    record: GraphRecord, graph: torch.fx.GraphModule, eager: Values, compiled: Values
) -> MergedOutputs | None:
    """What is to know of a graph whose tensors are others than eager's; None where they are the same ones."""
    expected, seen = _firsts(eager), _firsts(compiled)
    if expected == seen:
        return None
    results = {path: str(node) for path, node in leaves(graph.graph.output_node().args[0])}
    apart = [path for path in expected if expected[path] != seen.get(path)]
    ones = {expected[path] for path in apart} | {seen.get(path) for path in apart}
    names = {results.get(path) for path in expected if ones & {expected[path], seen.get(path)}}
    # Of those that are one tensor the last one made is the alias.
    made = [record.nodes[node.name] for node in graph.graph.nodes if node.name in names & record.nodes.keys()]
    line = (made[-1].file, made[-1].line) if made else None
    return MergedOutputs(record.settings.backend, line)


def _firsts(values: Values) -> dict[str, str]:
    """For each tensor among the outputs, where that very tensor is met first.

    >>> x = torch.ones(2)
    >>> _firsts(([x], (x, x + 1)))
    {'outputs[0]': 'inputs[0]', 'outputs[1]': 'outputs[1]'}
    """
    met: dict[int, str] = {}
    found: dict[str, str] = {}
    for label, each in zip(("inputs", "outputs"), values):
        for path, value in leaves(each, label):
            if isinstance(value, torch.Tensor):
                first = met.setdefault(id(value), path)
                if label == "outputs":
                    found[path] = first
    return found


def component_of(merged: Sequence[MergedOutputs], file: str) -> tuple[str, int | None]:
    """Who merges the outputs of these graphs of one call, and the line in the user's `file` that shows it, if known.

    >>> component_of([MergedOutputs("inductor", ("model.py", 7))], "model.py")
    ('inductor', 7)
    """
    backend = merged[0].backend
    # Inductor changes graphs before they come to its inner compiler; which of the two it is, runs of the call tell.
    torchs = {"inductor": "inductor", "aot_eager": "aot_autograd"}
    lines = [
        each.line[1]
        for each in merged
        if each.line and os.path.abspath(each.line[0]) == os.path.abspath(file)
    ]
    return torchs.get(backend, "backend"), lines[0] if lines else None
