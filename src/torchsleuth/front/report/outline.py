"""A captured graph as a page shows it: in the order it runs, folded by module, open where the fault is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from torchsleuth.core.cases.model import Triage
from torchsleuth.front.report.graph_reading import Call, Graph

# A page with more rows, or longer ones, takes too long to open.
MOST_ROWS = 4000
_MOST_CHARACTERS, _MARKUP = 480_000, 110
_SHORTEST, _LONGEST = 40, 240
_AROUND = 2
# Where more nodes are blamed than this, none is.
_MOST_BLAMED = 40
_DEEPEST = 12
# What Dynamo calls a parameter or a buffer of the model.
_ATTRIBUTE = re.compile(r"\bl_self_\w+_\b")
_BETWEEN = re.compile(r"_(?:modules|parameters|buffers)_")


@dataclass(frozen=True)
class Row:
    """One call, or, with `place`, the user's line that calls after it come from; `mark`: culprit, near or empty."""

    text: str
    shape: str = ""
    mark: str = ""
    place: str = ""


@dataclass
class Group:
    """Calls of one module that run after each other, and of the modules in it."""

    name: str
    items: list[Row | Group] = field(default_factory=list)
    calls: int = 0
    open: bool = False


@dataclass(frozen=True)
class Outline:
    """The groups, how many calls are left out before and after, and how many are marked."""

    top: Group
    before: int
    after: int
    culprits: int


def outline(graph: Graph, triage: Triage | None) -> Outline:
    """The graph folded by module: `outline(graph, case.triage).top.items`."""
    culprits = _culprits(graph, triage or Triage())
    near = _neighbours(graph.calls, culprits)
    first = min(culprits, default=0)
    start = max(0, min(first - MOST_ROWS // 2, len(graph.calls) - MOST_ROWS))
    shown = range(start, min(len(graph.calls), start + MOST_ROWS))
    longest = max(_SHORTEST, min(_LONGEST, _MOST_CHARACTERS // max(1, len(shown)) - _MARKUP))
    top = Group("", open=True)
    stack = [top]
    place = ""
    for number in shown:
        call = graph.calls[number]
        mark = "culprit" if number in culprits else "near" if number in near else ""
        before = stack[-1]
        _enter(stack, call.module)
        if call.place and (call.place != place or stack[-1] is not before):
            stack[-1].items.append(Row(_cut(call.code, longest), place=call.place))
        place = call.place
        stack[-1].items.append(Row(_cut(readable(call.text), longest), _cut(call.shape, 60), mark))
        for group in stack:
            group.calls += 1
            group.open |= bool(mark)
    return Outline(top, start, len(graph.calls) - len(shown) - start, len(culprits))


def readable(text: str) -> str:
    """Inputs under the names they have in the model.

    >>> readable("linear(x, l_self_modules_head_modules_0_parameters_weight_)")
    'linear(x, self.head.0.weight)'
    """
    return _ATTRIBUTE.sub(lambda found: _BETWEEN.sub(".", found[0][2:-1]), text)


def _culprits(graph: Graph, triage: Triage) -> set[int]:
    """The calls at fault; where triage named none or too many, those of the line at fault."""
    blamed = {*triage.nodes} if len(triage.nodes) <= _MOST_BLAMED else set()
    found = {number for number, call in enumerate(graph.calls) if call.name in blamed}
    if not found and triage.user_line:
        found = {number for number, call in enumerate(graph.calls) if call.place == triage.user_line}
    return found if len(found) <= _MOST_BLAMED else set()


def _neighbours(calls: Sequence[Call], culprits: set[int]) -> set[int]:
    """What a culprit uses, what uses it, and what runs right before and after it."""
    names = {calls[number].name for number in culprits}
    used = {name for number in culprits for name in calls[number].uses}
    near = {
        number for number, call in enumerate(calls) if call.name in used or not names.isdisjoint(call.uses)
    }
    around = {number + by for number in culprits for by in range(-_AROUND, _AROUND + 1)}
    return (near | around) - culprits


def _enter(stack: list[Group], module: str) -> None:
    """Leaves groups until the module is below the last one, then opens what is missing."""
    path = module.split(".")[:_DEEPEST] if module else []
    names = [".".join(path[: depth + 1]) for depth in range(len(path))]
    while len(stack) > 1 and stack[-1].name not in names:
        stack.pop()
    for name in names[len(stack) - 1 :]:
        group = Group(name)
        stack[-1].items.append(group)
        stack.append(group)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
