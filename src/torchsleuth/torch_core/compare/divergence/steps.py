"""A graph's values one at a time, on demand: computed when somebody asks, let go when nobody will ask again.

A compiled graph finishes its values in an order of its own. To compare each with eager and with float64 as it comes,
these two are computed just as far as needed; at any time there are only the values that still have a reader. A graph
that writes into memory it has read before has one order only, and is run in that one.
"""

from __future__ import annotations

import abc
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchsleuth.torch_core.compare.reference import opkinds
from torchsleuth.torch_core.compare.reference.cloning import (
    clone_inputs,
    for_one_run,
    positions_written,
    tensors_in,
)
from torchsleuth.torch_core.compare.reference.eager import EagerRun, substitutes
from torchsleuth.torch_core.compare.reference.float64 import (
    Float64Run,
    dtypes_of,
    widen,
    widen_graph,
    widen_inputs,
)
from torchsleuth.torch_core.compare.reference.memory import memory_left, trim
from torchsleuth.torch_core.compare.verdict.leaf import largest
from torchsleuth.torch_internals.schemas import may_write, written_arguments

MOST_WAITING = 1 << 30
"""Bytes of values that wait for the compiled run to come to them; beyond, they are let go, and not compared."""

BETWEEN_TRIMS = 64 << 20
"""Bytes of values on an accelerator that are made between two looks at the memory it has: a look takes 0.1 ms."""

MOST_REMEMBERED = 128 << 20
"""Bytes of eager's values that one run leaves for the next."""


class Steps(abc.ABC):
    """The values of a graph's nodes, on demand; `wanted` are the names that will be asked for, each once.

    How a node is computed from the values in `env`, its kinds know: `EagerSteps(graph, [x], {"relu"}).value("relu")`.
    """

    def __init__(
        self,
        graph: GraphModule,
        env: dict[Node, Any],
        wanted: Collection[str],
        at_hand: Collection[str] = (),
    ) -> None:
        self.nodes = {n.name: n for n in graph.graph.nodes}
        self.env = env
        self.dropped: set[str] = set()
        # Then its nodes have one order only.
        self.writes = writes_what_is_read(graph)
        # Nodes that are evaluated without their inputs.
        self._at_hand = frozenset() if self.writes else frozenset(at_hand)
        # Of a graph that writes: values as they were made, for whoever asks later.
        self._as_made: dict[Node, Any] = {}
        self._waiting = {self.nodes[name] for name in wanted if name in self.nodes}
        # Of a graph that writes: what is computed one after the other. Other inputs are taken up when they are read.
        self._order = iter([n for n in graph.graph.nodes if n.op != "placeholder" or n in self._waiting])
        self._readers = self._count_readers()
        self._asked: Node | None = None
        self._idle: dict[Node, int] = {}
        self._made_on_device = 0

    @abc.abstractmethod
    def _evaluate(self, node: Node) -> Any:
        """The value of a node whose inputs are in `env`."""

    def _count_readers(self) -> dict[Node, int]:
        """How many nodes that will be computed read each node."""
        needed = set(self.nodes.values())
        if not self.writes:
            needed = needed_by(self._waiting, behind=lambda node: node.name not in self._at_hand)

        def reads(user: Node) -> bool:
            return user in needed and user.op != "output" and user.name not in self._at_hand

        return {node: sum(map(reads, node.users)) for node in needed}

    def _inputs_of(self, node: Node) -> list[Node]:
        """The nodes whose values are needed to evaluate this one."""
        return [] if node.name in self._at_hand else node.all_input_nodes

    def value(self, name: str) -> Any:
        """The value of a node; None where it was let go for want of memory."""
        node = self._asked = self.nodes[name]
        if node not in self.env and node not in self._as_made and name not in self.dropped:
            self._compute(node)
        return self._as_made.get(node, self.env.get(node))

    def done(self, name: str) -> None:
        """Nobody will ask for this value again."""
        node = self.nodes[name]
        if node in self._waiting:
            self._waiting.discard(node)
            self._as_made.pop(node, None)
            self._idle.pop(node, None)
            if self._readers.get(node, 0) <= 0:
                self.env.pop(node, None)

    def _compute(self, wanted: Node) -> None:
        if self.writes:
            for node in self._order:
                if node.op != "output":
                    for given in node.all_input_nodes:
                        if given.op == "placeholder" and given not in self.env:
                            self._one(given)
                    self._one(node)
                if wanted in self.env:
                    return
        todo = [wanted]
        while todo:
            node = todo[-1]
            missing = [n for n in self._inputs_of(node) if n not in self.env] if node not in self.env else []
            if missing:
                todo += missing
                continue
            todo.pop()
            if node not in self.env:
                self._one(node)

    def _one(self, node: Node) -> None:
        value = self.env[node] = self._evaluate(node)
        if isinstance(value, torch.Tensor) and value.is_cuda:
            self._made_on_device += value.numel() * value.element_size()
            if self._made_on_device > BETWEEN_TRIMS:
                self._made_on_device = 0
                trim(value.device)
        if self.writes and node in self._waiting:
            self._as_made[node] = clone_inputs(value)
        for each in (node, *self._inputs_of(node)):
            if each is not node:
                self._readers[each] = self._readers.get(each, 0) - 1
            if self._readers.get(each, 0) <= 0:
                self._unread(each)

    def _unread(self, node: Node) -> None:
        """No node reads this value any more; it stays only for whoever will ask, as long as there is room."""
        if node not in self._waiting:
            self.env.pop(node, None)
            return
        if node.op == "placeholder" or node is self._asked or node in self._idle:
            return
        kept = tensors_in([self.env.get(node), self._as_made.get(node)])
        self._idle[node] = sum(t.untyped_storage().nbytes() for t in kept if t.layout == torch.strided)
        if sum(self._idle.values()) > min([MOST_WAITING, *(memory_left(t.device) // 2 for t in kept[:1])]):
            self.dropped.add(node.name)
            self.done(node.name)


def needed_by(
    nodes: Iterable[Node],
    counts: Callable[[Node], bool] = lambda node: True,
    behind: Callable[[Node], bool] = lambda node: True,
) -> set[Node]:
    """These nodes and all that they are made of, as far as it `counts`; what does not is not looked behind.

    What counts is looked behind unless `behind` says no.

    >>> sorted(node.name for node in needed_by([node]))
    ['relu', 'x']
    """
    found: set[Node] = set()
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node not in found and counts(node):
            found.add(node)
            todo += node.all_input_nodes if behind(node) else ()
    return found


def writes_what_is_read(graph: GraphModule) -> bool:
    """Whether the graph writes into memory of which a later node, or anyone at all but its caller, reads.

    What Inductor gets writes into inputs at its end, when everything was read.
    """
    place = {node: number for number, node in enumerate(graph.graph.nodes)}
    for node in graph.graph.nodes:
        if not may_write(node):
            continue
        targets = written_arguments(node)
        if node.op != "call_function" or not targets or any(t.op != "placeholder" for t in targets):
            return True
        if any(place[user] > place[node] and user.op != "output" for t in targets for user in t.users):
            return True
    return False


@dataclass
class EagerMemory:
    """Eager's values on one set of inputs that one run leaves for the next, as long as they take little memory.

    Those on an accelerator are not kept: memory is scarce there, and to compute them again takes no time. `terms` and
    `dtypes` are known of every node that was computed once, whether its value was kept or not.
    """

    values: dict[str, torch.Tensor] = field(default_factory=dict)
    terms: dict[str, float] = field(default_factory=dict)
    dtypes: dict[str, Any] = field(default_factory=dict)
    taken: int = 0
    most: int | None = None

    def keep(self, name: str, value: Any) -> None:
        """Remembers a value, if it is a plain tensor in main memory and there is room."""
        plain = isinstance(value, torch.Tensor) and value.layout == torch.strided
        if name in self.values or not plain or value.device.type != "cpu":
            return
        if self.most is None:
            self.most = min(MOST_REMEMBERED, memory_left(value.device) // 4)
        size = value.untyped_storage().nbytes()
        if self.taken + size <= self.most:
            self.taken += size
            self.values[name] = value


class EagerSteps(Steps):
    """Eager's values. What a graph draws at random is given as one run of it has drawn it (`drawn`).

    What `memory` has of the same graph on the same inputs is not computed again.
    """

    def __init__(
        self,
        graph: GraphModule,
        inputs: Sequence[Any],
        wanted: Collection[str],
        drawn: EagerRun | None = None,
        memory: EagerMemory | None = None,
    ) -> None:
        self.run = EagerRun(graph)
        given = for_one_run(graph, inputs)
        self.given = dict(zip((n for n in graph.graph.nodes if n.op == "placeholder"), given))
        self.drawn: Mapping[str, Any] = drawn.drawn if drawn is not None else {}
        self.memory = EagerMemory() if memory is None else memory
        self.run.dtypes = self.memory.dtypes
        super().__init__(graph, self.run.env, wanted, self.memory.values)
        self._remembers = memory is not None and not self.writes

    @property
    def dtypes(self) -> dict[str, Any]:
        """The dtypes of each node's value, as far as it was computed, here or in a run before."""
        return self.memory.dtypes

    def done(self, name: str) -> None:
        if self._remembers and self.nodes[name].op != "placeholder":
            self.memory.keep(name, self.env.get(self.nodes[name]))
        super().done(name)

    def _evaluate(self, node: Node) -> Any:
        if node.name in self._at_hand:
            return self.memory.values[node.name]
        if node in self.given or node.name in self.drawn:
            value = self.given[node] if node in self.given else clone_inputs(self.drawn[node.name])
            self.dtypes[node.name] = dtypes_of(value)
            return value
        if opkinds.sums(node):
            given = (self.env[each] for each in node.all_input_nodes)
            added = (v for v in given if isinstance(v, torch.Tensor) and v.is_floating_point())
            self.memory.terms[node.name] = max(map(largest, added), default=0.0)
        return self.run.run_node(node)

    def terms(self, name: str) -> float:
        """How large the terms are that a node adds up; 0 of a node that adds up none."""
        node = self.nodes[name]
        while node.target is operator.getitem and isinstance(node.args[0], Node):
            node = node.args[0]
        return self.memory.terms.get(node.name, 0.0)


class Float64Steps(Steps):
    """The values in float64. What has no float64 kernel is run in its own dtype, and is in `fallbacks`."""

    def __init__(
        self,
        graph: GraphModule,
        inputs: Sequence[Any],
        wanted: Collection[str],
        dtypes: dict[str, Any],
        drawn: EagerRun | None = None,
        wide: GraphModule | None = None,
    ) -> None:
        wide = widen_graph(graph) if wide is None else wide
        given = substitutes(graph, drawn) if drawn is not None else {}
        self.run = Float64Run(wide, graph, dtypes, given, notes=False)
        places = [n for n in wide.graph.nodes if n.op == "placeholder"]
        self.given = dict(zip(places, inputs))
        super().__init__(wide, self.run.env, wanted)
        # Of a graph that writes: inputs may share memory, which a write has to reach.
        written = sorted(positions_written(graph, inputs)) if self.writes else []
        self._widened = dict(zip((places[i] for i in written), widen_inputs([inputs[i] for i in written])))

    @property
    def fallbacks(self) -> dict[str, str]:
        return self.run.findings.fallbacks

    def _evaluate(self, node: Node) -> Any:
        if node in self.given:
            return self._widened[node] if node in self._widened else widen_inputs([self.given[node]])[0]
        return self.run.run_node(node)

    def rebase(self, name: str, eager: Any) -> None:
        """From here on float64 goes on from eager's value of a node: what comes after it is judged by itself."""
        if not self.writes and self.nodes[name] in self.env:
            self.env[self.nodes[name]] = widen(clone_inputs(eager))
