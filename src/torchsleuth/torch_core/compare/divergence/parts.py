"""What one kernel computes as a graph of its own, on eager's values: is it wrong by itself, and at which node?

The calls between a wrong value and those before it that were seen and are right. A part is compiled as the graph was,
after AOTAutograd or as Dynamo captured it, and judged with rounding noise that is measured for it. Inside, each node's
value is returned: as lowered first, without code; then compiled; and where returning values undoes the fusion that the
fault needs, by ever longer beginnings of the part, returning the last only. Of nodes at which an error begins the
culprit is the one without whose error the part is right: another may be just as wrong, and matter to nobody.
"""

from __future__ import annotations

import bisect
import contextlib
import copy
import functools
import itertools
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from torchsleuth.script_runtime.compiling import aten_compiler, captured_compiler
from torchsleuth.script_runtime.symbolic_inputs import symbolic_inputs
from torchsleuth.torch_core.compare.divergence.steps import EagerMemory, EagerSteps, needed_by
from torchsleuth.torch_core.compare.reference.cloning import alone_in_memory, clone_inputs, tensors_in
from torchsleuth.torch_core.compare.reference.eager import EagerRun
from torchsleuth.torch_core.compare.reference.memory import memory_left
from torchsleuth.torch_core.compare.verdict.judge import JUDGING_BYTES, judge
from torchsleuth.torch_core.compare.verdict.verdict import DIVERGED, Verdict
from torchsleuth.torch_core.tensors import describe_inputs
from torchsleuth.torch_internals.configuration import without_caches
from torchsleuth.torch_internals.inductor_ir.lowering import interpreted_lowering
from torchsleuth.torch_internals.kernel_builds import with_believed_instructions, without_idle_work
from torchsleuth.torch_internals.schemas import may_write

MOST_EXPOSED = 256 << 20
"""Bytes of values that a part may return at once."""

MOST_BEGINNINGS = 4
"""Nodes at which an error begins that are tried, each left to eager by itself: that is a compile of the part."""


@dataclass(frozen=True)
class Part:
    """Some calls of a graph, in order, with the values that they are given."""

    graph: GraphModule
    inputs: tuple[Any, ...]
    calls: tuple[str, ...]
    returned: tuple[str, ...]


Compile = Callable[[GraphModule, Sequence[Any]], Callable[[list[Any]], Any]]


@dataclass(frozen=True)
class Compilers:
    """Ways to run a part: `compiled` as the case is compiled, `lowered` without generated code, where that is known.

    `whole` is for graphs that take all inputs of the whole one, with its symbolic sizes and the memory that inputs
    share. Each gives a function of a list of inputs, or raises.
    """

    compiled: Compile
    lowered: Compile | None = None
    whole: Compile | None = None


@dataclass(frozen=True)
class Inside:
    """What came of looking into a part: whether it is wrong by itself, and the first node at which it is.

    `how` says how the node was found: "lowered", "compiled", "beginnings"; "" where there is but one; "beginning" where
    the part is right by itself, but not with all that comes before it. `recovers` says whether the same part is right
    where the node is left to eager; None where that could not be tried, or where the node is all that there is.
    """

    diverges: bool
    node: str | None = None
    how: str = ""
    sentence: str = ""
    recovers: bool | None = None


@dataclass(frozen=True)
class Whole:
    """A graph that parts are cut from: its inputs, ways to compile a part, and what is known of its values.

    `drawn` is a run of it in eager, for what it draws at random; `memory` what earlier runs on these inputs have left.
    Used as `Whole(gm, [x], aten_ways({})).look_inside("relu", ["sin", "relu"])`.
    """

    graph: GraphModule
    inputs: Sequence[Any]
    ways: Compilers
    drawn: EagerRun | None = None
    memory: EagerMemory = field(default_factory=EagerMemory)

    @cached_property
    def nodes(self) -> dict[str, Node]:
        """The nodes by name, in order."""
        return {n.name: n for n in self.graph.graph.nodes}

    def calls_between(self, name: str, known: Collection[str]) -> tuple[str, ...]:
        """The calls that make a node's value from known ones, in order; views and literals of known ones included."""
        found = needed_by(
            [self.nodes[name]],
            lambda each: each.op.startswith("call_") and (each.name not in known or each.name == name),
        )
        return tuple(name for name, each in self.nodes.items() if each in found)

    def calls_without(self, calls: Collection[str], left: str, ends: Sequence[str]) -> list[str]:
        """Of these calls those that are still needed for the values of `ends` where `left` is given."""
        needed = needed_by(
            [self.nodes[end] for end in ends], lambda each: each.name in calls and each.name != left
        )
        return [name for name, node in self.nodes.items() if node in needed]

    def part(self, calls: Sequence[str], returned: Sequence[str]) -> Part:
        """These calls as a graph of their own, fed with eager's values, which nobody may write."""
        chosen = set(calls)
        outer = list(
            dict.fromkeys(
                source.name
                for name in calls
                for source in self.nodes[name].all_input_nodes
                if source.name not in chosen and source.op != "get_attr"
            )
        )
        steps = EagerSteps(self.graph, self.inputs, outer, self.drawn, self.memory)
        values = {}
        for name in outer:
            # What a graph writes is as it was when it was made; anything else nobody changes.
            values[name] = clone_inputs(steps.value(name)) if steps.writes else steps.value(name)
            steps.done(name)
        alone = {outer[place] for place in alone_in_memory([*values.values()])}
        values = {n: v if n in alone and _fills_its_memory(v) else clone_inputs(v) for n, v in values.items()}
        made: dict[str, Any] = {}
        small = Graph()
        for name, value in values.items():
            # A plain number is written where it is used.
            made[name] = small.placeholder(name) if isinstance(value, torch.Tensor) else value
        for name in calls:
            node = self.nodes[name]
            for source in node.all_input_nodes:
                if source.op == "get_attr" and source.name not in made:
                    made[source.name] = small.create_node("get_attr", source.target, name=source.name)
            args = torch.fx.map_arg(node.args, lambda n: made[n.name])
            kwargs = torch.fx.map_arg(node.kwargs, lambda n: made[n.name])
            made[name] = small.create_node(node.op, node.target, args, kwargs, name=name)
        small.output(tuple(made[name] for name in returned))
        given = tuple(value for value in values.values() if isinstance(value, torch.Tensor))
        return Part(GraphModule(self.graph, small), given, tuple(calls), tuple(returned))

    def beginning(self, name: str) -> Part:
        """The graph up to a node, on its own inputs, with what is written into them on the way; it returns the node."""
        kept = needed_by([self.nodes[name]])
        for each in self.nodes.values():
            follows = each.target is operator.getitem or may_write(each)
            if follows and all(
                source in kept or source.op == "placeholder" for source in each.all_input_nodes
            ):
                kept.add(each)
        small = Graph()
        made: dict[Node, Node] = {}
        for each in self.nodes.values():
            if each in kept or each.op == "placeholder":
                made[each] = small.node_copy(each, made.__getitem__)
        small.output((made[self.nodes[name]],))
        calls = tuple(each.name for each in made if each.op.startswith("call_"))
        return Part(GraphModule(self.graph, small), tuple(self.inputs), calls, (name,))

    def look_inside(self, name: str, calls: Sequence[str]) -> Inside:
        """Whether the calls that make a node are wrong by themselves, and which of them is the first that is."""
        alone = self.part(calls, [name])
        verdict = _judged(alone, self.ways.compiled)
        if verdict is None or not verdict.diverged:
            began = _judged(self.beginning(name), self.ways.whole or self.ways.compiled)
            if began is not None and began.diverged:
                return Inside(True, name, "beginning", began.sentence)
            return Inside(False, sentence="" if verdict is None else verdict.sentence)
        tensors = tensors_among(alone.graph, alone.inputs, alone.calls)
        if len(tensors) < 2:
            return Inside(True, name, "", verdict.sentence)
        first: Inside | None = None
        for found in itertools.islice(self._beginnings_in(alone, tensors), MOST_BEGINNINGS):
            if found.node == name:
                return first or replace(found, sentence=found.sentence or verdict.sentence)
            kept = self.calls_without(calls, str(found.node), [name])
            given = _judged(self.part(kept, [name]), self.ways.compiled)
            recovers = None if given is None else not given.diverged
            found = replace(found, sentence=found.sentence or verdict.sentence, recovers=recovers)
            if recovers or (first is None and recovers is None):
                return found
            first = first or found
        assert first is not None
        return first

    def _beginnings_in(self, alone: Part, tensors: Mapping[str, tuple[int, int]]) -> Iterator[Inside]:
        """The nodes of a wrong part at which an error begins, in order, those that need no code first; at least one."""
        ways, calls = self.ways, alone.calls
        named: set[str] = set()
        if _may_be_exposed(alone, tensors):
            exposed = self.part(calls, [*tensors])
            for way, how in ((ways.lowered, "lowered"), (ways.compiled, "compiled")):
                wrong = _wrong_values(exposed, way) if way is not None else {}
                begin = [each for each in beginnings(self.graph, wrong, tensors) if each not in named]
                named.update(begin)
                yield from (Inside(True, each, how, wrong[each]) for each in begin)
        elif ways.lowered is not None and _wrong(self.part(calls, calls[-1:]), ways.lowered):
            named.add(self._first_beginning([*tensors], calls, ways.lowered))
            yield from (Inside(True, each, "lowered") for each in named)
        if not named:
            yield Inside(True, self._first_beginning([*tensors], calls, ways.compiled), "beginnings")

    def _first_beginning(self, tensors: Sequence[str], calls: Sequence[str], way: Compile) -> str:
        """The first node whose value is wrong where only it is returned; by halves, since what follows inherits it."""
        known = self.nodes.keys() - set(calls)

        def wrong(place: int) -> bool:
            name = tensors[place]
            return _wrong(self.part(self.calls_between(name, known), [name]), way)

        return tensors[bisect.bisect_left(range(len(tensors) - 1), True, key=wrong)]

    def right_without(self, calls: Sequence[str], left: str) -> bool | None:
        """Whether the results, wrong where all of `calls` are compiled, are right where `left` is left to eager.

        None where they are not wrong, or where one of the two cannot be compiled.
        """
        output = self.graph.graph.output_node()
        ends = [node.name for node in output.all_input_nodes if node.name in calls and node.name != left]
        kept = self.calls_without(calls, left, ends)
        if not ends or not _wrong(self.part(calls, ends), self.ways.compiled):
            return None
        verdict = _judged(self.part(kept, ends), self.ways.compiled)
        return None if verdict is None else not verdict.diverged


def _fills_its_memory(value: torch.Tensor) -> bool:
    return value.numel() * value.element_size() == value.untyped_storage().nbytes()


def beginnings(graph: GraphModule, wrong: Collection[str], known: Collection[str]) -> list[str]:
    """Of nodes whose values are wrong those that read none of the others, by all that is known.

    >>> beginnings(gm, ["relu"], ["relu"])
    ['relu']
    """

    def inherits(node: Node) -> bool:
        read = needed_by([node], behind=lambda each: each is node or each.name not in known)
        return any(each.name in wrong for each in read - {node})

    return [node.name for node in graph.graph.nodes if node.name in wrong and not inherits(node)]


def _judged(part: Part, way: Compile) -> Verdict | None:
    """The verdict on a part that is run this way; None where it cannot be run so."""
    try:
        compiled = way(part.graph, list(part.inputs))
        return judge(part.graph, list(part.inputs), compiled, boxed=True, repeat=False, rng_matched=True)
    except Exception:  # the compiler may refuse a part of what it compiles as a whole
        return None


def _wrong(part: Part, way: Compile) -> bool:
    verdict = _judged(part, way)
    return verdict is not None and verdict.diverged


def _wrong_values(part: Part, way: Compile) -> dict[str, str]:
    """The returned nodes whose values are wrong, in order, with what is said of each."""
    verdict = _judged(part, way)
    leaves = verdict.leaves if verdict is not None else ()
    wrong = {leaf.path: leaf for leaf in leaves if leaf.kind == DIVERGED}
    paths = {name: f"outputs[{place}]" for place, name in enumerate(part.returned)}
    return {name: wrong[path].sentence for name, path in paths.items() if path in wrong}


def tensors_among(
    graph: GraphModule,
    inputs: Sequence[Any],
    calls: Sequence[str],
    drawn: EagerRun | None = None,
    memory: EagerMemory | None = None,
) -> dict[str, tuple[int, int]]:
    """Of these calls those whose value is a tensor, with how many elements and bytes it has.

    >>> tensors_among(gm, [torch.ones(2)], ["relu"])
    {'relu': (2, 8)}
    """
    steps = EagerSteps(graph, inputs, calls, drawn, memory)
    found = {}
    with torch.no_grad():
        for name in calls:
            value = steps.value(name)
            steps.done(name)
            if isinstance(value, torch.Tensor):
                found[name] = value.numel(), value.numel() * value.element_size()
    return found


def _may_be_exposed(part: Part, tensors: Mapping[str, tuple[int, int]]) -> bool:
    """Whether there is memory to return all these values and to judge them."""
    taken, largest = sum(size for _, size in tensors.values()), max(count for count, _ in tensors.values())
    left = min((memory_left(t.device) for t in tensors_in(list(part.inputs))[:1]), default=MOST_EXPOSED)
    # Of each there is the compiled value and eager's; they are judged one after the other.
    return taken <= MOST_EXPOSED and 2 * taken + JUDGING_BYTES * largest <= left


AOT_ALONE = "aot_eager_decomp_partition"
"""The backend of torch's that does all of AOTAutograd and hands its graphs to eager's kernels."""

Ambience = Callable[[], contextlib.AbstractContextManager[Any]]
Make = Callable[[GraphModule, Sequence[Any]], Callable[[], Callable[[list[Any]], Any]]]
# Of what Inductor was told about a graph, what holds for its parts as well.
_OF_PARTS = ("is_inference", "is_backward")


def aten_ways(
    kwargs: Mapping[str, Any],
    compiler: Any = None,
    ambience: Ambience = contextlib.nullcontext,
    description: Mapping[str, Any] | None = None,
) -> Compilers:
    """For aten graphs, which go to Inductor or to `compiler`: `aten_ways({}).compiled(part, [x])`.

    `description` is that of the whole graph's inputs, where it is known.
    """
    own = {key: value for key, value in kwargs.items() if key in _OF_PARTS}

    def make(graph: GraphModule, values: Sequence[Any], described: Mapping[str, Any] | None = None) -> Any:
        given = described or describe_inputs(list(values)).to_json()
        fakes, mode = symbolic_inputs(dict(given), list(values))
        return aten_compiler(copy.deepcopy(graph), fakes, mode, {}, own, compiler)

    whole = functools.partial(make, described=description)
    return replace(_ways(make, ambience), whole=_ways(whole, ambience).compiled)


def captured_ways(
    backend: Any, options: Mapping[str, Any], ambience: Ambience = contextlib.nullcontext
) -> Compilers:
    """For captured graphs, which go to `backend`: `captured_ways("inductor", {}).lowered(part, [x])`."""

    return _ways(
        lambda graph, values: captured_compiler(copy.deepcopy(graph), list(values), backend, dict(options)),
        ambience,
    )


def _ways(make: Make, ambience: Ambience) -> Compilers:
    def compiled(graph: GraphModule, values: Sequence[Any]) -> Callable[[list[Any]], Any]:
        def build() -> Callable[[list[Any]], Any]:
            compile_it = make(graph, values)
            with ambience(), without_caches(), without_idle_work():
                return compile_it()

        run = with_believed_instructions(build)

        def call(given: list[Any]) -> Any:
            with ambience():
                return run(given)

        return call

    def lowered(graph: GraphModule, values: Sequence[Any]) -> Callable[[list[Any]], Any]:
        with interpreted_lowering():
            return compiled(graph, values)

    return Compilers(compiled, lowered)
