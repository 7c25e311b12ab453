"""Any set of nodes of a graph as a graph of its own, fed with the values its missing operands had.

Operands outside the set become inputs with their recorded values (plain numbers become literals), nodes that
nothing inside reads become outputs. What no input can carry, such as a tuple or a context, keeps its maker and
its readers together: `units` gives the sets of nodes that stand or fall together.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from torchsleuth.torch_core.graphs.recording import Opaque, Recorded, RecordedTensor, Recording
from torchsleuth.torch_core.tensors import ScalarSpec
from torchsleuth.torch_internals.operators import nesting
from torchsleuth.torch_internals.schemas import may_write

__all__ = ["Cut", "calls_of", "cut", "units"]

_CALLS = ("call_function", "call_method", "call_module")


@dataclass(frozen=True)
class Cut:
    """A cut-out graph, the names of its inputs and their values; `names` are those of the nodes they stand for."""

    graph: torch.fx.GraphModule
    names: tuple[str, ...]
    values: tuple[Recorded, ...]


def calls_of(graph: torch.fx.GraphModule) -> int:
    """How many calls a graph makes, nested graphs included.

    >>> calls_of(gm)
    1
    """
    parts = [part for part in graph.modules() if isinstance(part, torch.fx.GraphModule)]
    return sum(node.op in _CALLS for part in parts for node in part.graph.nodes)


def units(recording: Recording) -> list[tuple[str, ...]]:
    """The calls of a graph in order, in groups that cannot be cut apart.

    >>> units(record_values(gm, [x]))
    [('relu',)]
    """
    leader: dict[str, str] = {}

    def find(name: str) -> str:
        while leader.get(name, name) != name:
            leader[name] = leader.get(leader[name], leader[name])
            name = leader[name]
        return name

    def unite(one: str, other: str) -> None:
        first, second = sorted((find(one), find(other)), key=recording.steps.__getitem__)
        leader[second] = first

    calls = [n for n in recording.graph.graph.nodes if n.op in _CALLS]
    open_levels: list[str] = []
    for node in calls:
        if open_levels:  # a level of torch.func that is opened must be closed, with all that ran in it
            unite(open_levels[-1], node.name)
        if nesting(node) > 0:
            open_levels.append(node.name)
        elif nesting(node) < 0 and open_levels:
            open_levels.pop()
        if _kind(recording, node) == "opaque":
            for user in node.users:
                if user.op in _CALLS:
                    unite(node.name, user.name)
    groups: dict[str, list[str]] = {}
    for node in calls:
        groups.setdefault(find(node.name), []).append(node.name)
    return [tuple(group) for group in groups.values()]


def cut(recording: Recording, keep: Iterable[str], *, severed: bool = False, exposed: bool = False) -> Cut:
    """The nodes named by `keep` as a graph of their own.

    `severed` feeds each unit separately; `exposed` returns every value, not only those that nothing inside reads.
    A getitem without its producer is left out, a tuple's producer brings one getitem along.

    >>> cut(record_values(gm, [x]), {"relu"}).names
    ('x',)
    """
    kept = _completed(recording, set(keep))
    inside = _inside(recording, kept, severed)
    edges = _edges(recording, kept, inside)
    graph = torch.fx.Graph()
    made: dict[str, torch.fx.Node] = {}
    for name in edges:
        # In a severed cut a node may be inside and yet be read as an input: the name is the node's. And a compiler
        # that knows calls by their target's name must not take an input for one.
        label = f"{name}_given" if name in kept or hasattr(torch.Tensor, name) else name
        made[name] = graph.create_node("placeholder", label, name=label)
    nodes: dict[str, torch.fx.Node] = {}
    for node in recording.ordered(kept):
        step = recording.steps[node.name]

        def operand(source: torch.fx.Node, node: torch.fx.Node = node, step: int = step) -> object:
            if source.op == "get_attr":
                if source.name not in nodes:
                    nodes[source.name] = graph.create_node("get_attr", source.target, name=source.name)
                return nodes[source.name]
            if (source.name, node.name) in inside:
                return nodes[source.name]
            return made[source.name] if source.name in made else recording.value(source.name, step)

        args = torch.fx.map_arg(node.args, operand)
        kwargs = torch.fx.map_arg(node.kwargs, operand)
        nodes[node.name] = copy = graph.create_node(node.op, node.target, args, kwargs, name=node.name)
        copy.meta = {key: node.meta[key] for key in ("stack_trace", "nn_module_stack") if key in node.meta}
    graph.output(tuple(nodes[name] for name in _outputs(recording, kept, set() if exposed else inside)))
    module = torch.fx.GraphModule(recording.graph, graph)
    return Cut(module, tuple(edges), tuple(edges.values()))


def _kind(recording: Recording, node: torch.fx.Node) -> str:
    """What can carry a node's result across a cut: an `input`, a `literal`, or nothing (`opaque`)."""
    value = recording.value(node.name)
    if isinstance(value, (RecordedTensor, ScalarSpec)):
        return "input"
    return "opaque" if isinstance(value, Opaque) else "literal"


def _completed(recording: Recording, keep: set[str]) -> set[str]:
    """`keep`, with what cannot be apart from it put in or left out."""
    kept = set(keep)
    ordered = [n for n in recording.ordered(keep) if n.op in _CALLS]
    for node in ordered:
        sources = [s for s in node.all_input_nodes if s.op in _CALLS and s.name not in kept]
        if not any(_kind(recording, s) == "opaque" for s in sources):
            continue
        if node.target is operator.getitem:
            kept.discard(node.name)
        else:
            _pull(recording, sources, kept)
    for node in ordered:
        if node.name not in kept or _kind(recording, node) != "opaque":
            continue
        readers = [u for u in node.users if u.op in _CALLS]
        if readers and not any(user.name in kept for user in readers):
            best = next((u for u in readers if _kind(recording, u) == "input"), readers[0])
            kept.add(best.name)
            _pull(recording, [s for s in best.all_input_nodes if s.op in _CALLS], kept)
    return kept


def _pull(recording: Recording, sources: list[torch.fx.Node], kept: set[str]) -> None:
    todo = [s for s in sources if _kind(recording, s) == "opaque"]
    while todo:
        node = todo.pop()
        if node.name not in kept:
            kept.add(node.name)
            todo += [s for s in node.all_input_nodes if s.op in _CALLS and _kind(recording, s) == "opaque"]


def _inside(recording: Recording, kept: set[str], severed: bool) -> set[tuple[str, str]]:
    """The edges of the old graph that stay edges in the new one."""
    stay = set()
    for node in recording.ordered(kept):
        for source in node.all_input_nodes:
            opaque = source.op in _CALLS and _kind(recording, source) == "opaque"
            if source.name in kept and (opaque or not severed):
                stay.add((source.name, node.name))
    return stay


def _edges(recording: Recording, kept: set[str], inside: set[tuple[str, str]]) -> dict[str, object]:
    """The inputs of the new graph with their values: the old graph's own first, in its order."""
    found: dict[str, object] = {}
    for node in recording.ordered(kept):
        for source in node.all_input_nodes:
            if source.op == "get_attr" or (source.name, node.name) in inside or source.name in found:
                continue
            if _kind(recording, source) == "input":
                found[source.name] = recording.value(source.name, recording.steps[node.name])
    first = [n.name for n in recording.ordered(found) if n.op == "placeholder"]
    return {name: found[name] for name in dict.fromkeys([*first, *found])}


def _outputs(recording: Recording, kept: set[str], inside: set[tuple[str, str]]) -> list[str]:
    """What nothing inside reads, and what the old graph returned already."""
    read = {source for source, _ in inside}
    return [
        node.name
        for node in recording.ordered(kept)
        if (node.name not in read or node.name in recording.returned)
        and _kind(recording, node) == "input"
        # What nobody reads and is there for what it writes, such as a last `copy_`, yields nothing of its own.
        and (node.users or not may_write(node))
    ]
