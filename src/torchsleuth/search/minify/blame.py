"""Which nodes may be to blame, best guess first, from what the failure says of itself.

Compilers name the operator they were at (`target: aten.relu.default`), the line it came from (`Found from`), or at
least write an operator's name into a message or a kernel's name; generated code names it beside the call of a
kernel that did not return. Wrong guesses cost a question or two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

from torchsleuth.torch_core.graphs.source_line import SourceLine
from torchsleuth.torch_core.repro.generated import TITLE
from torchsleuth.torch_internals.operators import short_name

# An operator that makes up more than this share of a graph is no hint.
COMMON = 0.25


def seeds(graph: torch.fx.GraphModule, text: str, message: str, lines: Mapping[str, SourceLine]) -> list[str]:
    """Names of nodes, most suspicious first; `text` is the traceback, `lines` the user's line of each node.

    >>> seeds(gm, "While executing %relu : [num_users=1] = call_function[target=torch.relu]", "", {})
    ['relu']
    """
    calls = [n for n in graph.graph.nodes if n.op.startswith("call_")]
    generated = text.rpartition(TITLE)[2] if TITLE in text else ""
    targets = set(re.findall(r"^\s*target: ([\w.]+)", text, re.MULTILINE))
    targets |= set(re.findall(r"'torch\.ops\.([\w.]+)'", generated))
    places = (
        set(re.findall(r'File "([^"]+)", line (\d+)', text.rpartition("Found from")[2]))
        if "Found from" in text
        else set()
    )
    executing = set(re.findall(r"While executing %(\w+)", text))
    words = set(re.split(r"[^a-z0-9]+|_", message.lower()))
    score: dict[str, float] = {}
    for node in calls:
        points = 0.0
        if node.name in executing:
            points += 8
        if str(node.target) in targets or (_holds(graph, node, targets) and targets):
            points += 4
        line = lines.get(node.name)
        if points and line and (line.file, str(line.line)) in places:
            points += 2
        name = short_name(node.target).lower()
        if len(name) > 2 and (
            name in words
            or ("_" in name and words.issuperset(name.strip("_").split("_")))
            or re.search(rf"(?<![a-z0-9]){re.escape(name)}(?![a-z0-9])", generated)
        ):
            points += 1
        if points:
            score[node.name] = points
    if len(score) > COMMON * len(calls) and len(calls) > 16 and max(score.values()) <= 1:
        return []
    return sorted(score, key=lambda name: -score[name])


def _holds(graph: torch.fx.GraphModule, node: torch.fx.Node, targets: set[str]) -> bool:
    """Whether a nested graph that the node calls holds one of the targets."""
    for source in node.all_input_nodes:
        nested = getattr(graph, str(source.target), None) if source.op == "get_attr" else None
        inner = nested.graph.nodes if isinstance(nested, torch.fx.GraphModule) else ()
        if any(str(node.target) in targets for node in inner):
            return True
    return False
