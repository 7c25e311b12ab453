"""What one kernel computes as a graph of its own, on eager's values: is it wrong by itself, and at which node?

The calls between a wrong value and those before it that were seen and are right. A part is compiled as the graph was,
after AOTAutograd or as Dynamo captured it, and judged with rounding noise that is measured for it. Inside, each node's
value is returned: as lowered first, without code; then compiled; and where returning values undoes the fusion that the
fault needs, by ever longer beginnings of the part, returning the last only. Of nodes at which an error begins the
culprit is the one without whose error the part is right: another may be just as wrong, and matter to nobody.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from torchsleuth.torch_internals.inductor_ir.lowering import interpreted_lowering, without_caches
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


@dataclass(frozen=True)
class Compilers:
    """Ways to run a part: `compiled` as the case is compiled, `lowered` without generated code, where that is known.

    `whole` is for graphs that take all inputs of the whole one, with its symbolic sizes and the memory that inputs
    share. Each gives a function of a list of inputs, or raises.
    """

    compiled: Callable[[GraphModule, Sequence[Any]], Callable[[list[Any]], Any]]
    lowered: Callable[[GraphModule, Sequence[Any]], Callable[[list[Any]], Any]] | None = None
    whole: Callable[[GraphModule, Sequence[Any]], Callable[[list[Any]], Any]] | None = None


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


def calls_between(graph: GraphModule, node: str, known: Collection[str]) -> tuple[str, ...]:
    """The calls that make a node's value from known ones, in order; views and literals of known ones included.

    >>> calls_between(gm, "relu", {"x"})
    ('relu',)
    """
    nodes = {n.name: n for n in graph.graph.nodes}
    found = needed_by(
        [nodes[node]],
        lambda each: each.op.startswith("call_") and (each.name not in known or each.name == node),
    )
    return tuple(name for name, each in nodes.items() if each in found)


def part_of(
    graph: GraphModule,
    inputs: Sequence[Any],
    calls: Sequence[str],
    returned: Sequence[str],
    drawn: EagerRun | None = None,
    memory: EagerMemory | None = None,
) -> Part:
    """These calls as a graph of their own, fed with eager's values, which nobody may write."""
    nodes = {n.name: n for n in graph.graph.nodes}
    chosen = set(calls)
    outer = list(
        dict.fromkeys(
            source.name
            for name in calls
            for source in nodes[name].all_input_nodes
            if source.name not in chosen and source.op != "get_attr"
        )
    )
    steps = EagerSteps(graph, inputs, outer, drawn, memory)
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
        node = nodes[name]
        for source in node.all_input_nodes:
            if source.op == "get_attr" and source.name not in made:
                made[source.name] = small.create_node("get_attr", source.target, name=source.name)
        args = torch.fx.map_arg(node.args, lambda n: made[n.name])
        kwargs = torch.fx.map_arg(node.kwargs, lambda n: made[n.name])
        made[name] = small.create_node(node.op, node.target, args, kwargs, name=name)
    small.output(tuple(made[name] for name in returned))
    given = tuple(value for value in values.values() if isinstance(value, torch.Tensor))
    return Part(GraphModule(graph, small), given, tuple(calls), tuple(returned))


def _fills_its_memory(value: torch.Tensor) -> bool:
    return value.numel() * value.element_size() == value.untyped_storage().nbytes()


def beginning_of(graph: GraphModule, node: str, inputs: Sequence[Any]) -> Part:
    """The graph up to a node, on its own inputs, with what is written into them on the way; only the node is returned.

    >>> beginning_of(gm, "relu", [torch.ones(2)]).calls
    ('relu',)
    """
    nodes = {n.name: n for n in graph.graph.nodes}
    kept = needed_by([nodes[node]])
    for each in graph.graph.nodes:
        follows = each.target is operator.getitem or may_write(each)
        if follows and all(source in kept or source.op == "placeholder" for source in each.all_input_nodes):
            kept.add(each)
    small = Graph()
    made: dict[Node, Node] = {}
    for each in graph.graph.nodes:
        if each in kept or each.op == "placeholder":
            made[each] = small.node_copy(each, made.__getitem__)
    small.output((made[nodes[node]],))
    calls = tuple(each.name for each in made if each.op.startswith("call_"))
    return Part(GraphModule(graph, small), tuple(inputs), calls, (node,))


def look_inside(
    graph: GraphModule,
    inputs: Sequence[Any],
    node: str,
    calls: Sequence[str],
    ways: Compilers,
    drawn: EagerRun | None = None,
    memory: EagerMemory | None = None,
) -> Inside:
    """Whether the calls that make `node` are wrong by themselves, and which of them is the first that is.

    `memory` is what earlier runs on these inputs have left.
    """
    memory = EagerMemory() if memory is None else memory

    def part(names: Sequence[str], returned: Sequence[str]) -> Part:
        return part_of(graph, inputs, names, returned, drawn, memory)

    alone = part(calls, [node])
    told = _judged(alone, ways.compiled)
    if told is None or told.kind != DIVERGED:
        began = _judged(beginning_of(graph, node, inputs), ways.whole or ways.compiled)
        if began is not None and began.kind == DIVERGED:
            return Inside(True, node, "beginning", began.sentence)
        return Inside(False, sentence="" if told is None else told.sentence)
    tensors, fit = _tensors_of(alone)
    if len(tensors) < 2:
        return Inside(True, node, "", told.sentence)
    first: Inside | None = None
    for found in itertools.islice(_beginnings_in(part, calls, tensors, fit, ways, graph), MOST_BEGINNINGS):
        if found.node == node:
            return first or replace(found, sentence=found.sentence or told.sentence)
        kept = calls_without(graph, calls, str(found.node), [node])
        given = _judged(part(kept, [node]), ways.compiled)
        recovers = None if given is None else given.kind != DIVERGED
        found = replace(found, sentence=found.sentence or told.sentence, recovers=recovers)
        if recovers or (first is None and recovers is None):
            return found
        first = first or found
    assert first is not None
    return first


def _beginnings_in(
    part: Callable[[Sequence[str], Sequence[str]], Part],
    calls: Sequence[str],
    tensors: Sequence[str],
    fit: bool,
    ways: Compilers,
    graph: GraphModule,
) -> Iterator[Inside]:
    """The nodes of a wrong part at which an error begins, in order, those that need no code first; at least one."""
    told: set[str] = set()
    if fit:
        exposed = part(calls, tensors)
        for way, name in ((ways.lowered, "lowered"), (ways.compiled, "compiled")):
            wrong = _wrong_values(exposed, way) if way is not None else {}
            begin = [each for each in beginnings(graph, wrong, tensors) if each not in told]
            told.update(begin)
            yield from (Inside(True, each, name, wrong[each]) for each in begin)
    elif ways.lowered is not None and _wrong(part(calls, calls[-1:]), ways.lowered):
        told.add(_first_beginning(tensors, part, calls, ways.lowered, graph))
        yield from (Inside(True, each, "lowered") for each in told)
    if not told:
        yield Inside(True, _first_beginning(tensors, part, calls, ways.compiled, graph), "beginnings")


def beginnings(graph: GraphModule, wrong: Collection[str], known: Collection[str]) -> list[str]:
    """Of nodes whose values are wrong those that read none of the others, by all that is known.

    >>> beginnings(gm, ["relu"], ["relu"])
    ['relu']
    """

    def inherits(node: Node) -> bool:
        read = needed_by([node], behind=lambda each: each is node or each.name not in known)
        return any(each.name in wrong for each in read - {node})

    return [node.name for node in graph.graph.nodes if node.name in wrong and not inherits(node)]


def right_without(
    graph: GraphModule,
    inputs: Sequence[Any],
    calls: Sequence[str],
    left: str,
    ways: Compilers,
    drawn: EagerRun | None = None,
    memory: EagerMemory | None = None,
) -> bool | None:
    """Whether a graph's results, wrong where all of `calls` are compiled, are right where `left` is left to eager.

    None where they are not wrong, or where one of the two cannot be compiled. Used as
    `right_without(gm, [x], ["sin", "relu"], "relu", aten_ways({}))`.
    """
    output = graph.graph.output_node()
    ends = [node.name for node in output.all_input_nodes if node.name in calls and node.name != left]
    kept = calls_without(graph, calls, left, ends)
    if not ends or not _wrong(part_of(graph, inputs, calls, ends, drawn, memory), ways.compiled):
        return None
    told = _judged(part_of(graph, inputs, kept, ends, drawn, memory), ways.compiled)
    return None if told is None else told.kind != DIVERGED


def calls_without(graph: GraphModule, calls: Collection[str], left: str, ends: Sequence[str]) -> list[str]:
    """Of these calls those that are still needed for the values of `ends` where `left` is given.

    >>> calls_without(gm, ["relu"], "x", ["relu"])
    ['relu']
    """
    nodes = {n.name: n for n in graph.graph.nodes}
    needed = needed_by([nodes[end] for end in ends], lambda each: each.name in calls and each.name != left)
    return [name for name, node in nodes.items() if node in needed]


def _judged(part: Part, way: Callable[..., Any]) -> Verdict | None:
    """The verdict on a part that is run this way; None where it cannot be run so."""
    try:
        compiled = way(part.graph, list(part.inputs))
        return judge(part.graph, list(part.inputs), compiled, boxed=True, repeat=False, rng_matched=True)
    except Exception:  # the compiler may refuse a part of what it compiles as a whole
        return None


def _wrong_values(part: Part, way: Callable[..., Any]) -> dict[str, str]:
    """The returned nodes whose values are wrong, in order, with what is said of each."""
    told = _judged(part, way)
    wrong = {leaf.path: leaf for leaf in told.leaves if leaf.kind == DIVERGED} if told is not None else {}
    paths = {name: f"outputs[{place}]" for place, name in enumerate(part.returned)}
    return {name: wrong[path].sentence for name, path in paths.items() if path in wrong}


def _first_beginning(
    tensors: Sequence[str],
    part: Callable[[Sequence[str], Sequence[str]], Part],
    calls: Sequence[str],
    way: Callable[..., Any],
    graph: GraphModule,
) -> str:
    """The first node whose value is wrong where only it is returned; by halves, since what follows inherits it."""
    low, high = 0, len(tensors) - 1
    while low < high:
        middle = (low + high) // 2
        name = tensors[middle]
        known = {n.name for n in graph.graph.nodes} - set(calls)
        if _wrong(part(calls_between(graph, name, known), [name]), way):
            high = middle
        else:
            low = middle + 1
    return tensors[low]


def _wrong(part: Part, way: Callable[..., Any]) -> bool:
    told = _judged(part, way)
    return told is not None and told.kind == DIVERGED


def _tensors_of(part: Part) -> tuple[list[str], bool]:
    """The calls of a part whose value is a tensor, and whether there is memory to return and judge them all at once."""
    steps = EagerSteps(part.graph, part.inputs, part.calls)
    found, taken, largest = [], 0, 0
    for name in part.calls:
        value = steps.value(name)
        steps.done(name)
        if isinstance(value, torch.Tensor):
            taken += value.numel() * value.element_size()
            largest = max(largest, value.numel())
            found.append(name)
    left = min((memory_left(t.device) for t in tensors_in(list(part.inputs))[:1]), default=MOST_EXPOSED)
    # Of each there is the compiled value and eager's; they are judged one after the other.
    return found, taken <= MOST_EXPOSED and 2 * taken + JUDGING_BYTES * largest <= left


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

    def making(described: Mapping[str, Any] | None) -> Make:
        def make(graph: GraphModule, values: Sequence[Any]) -> Callable[[], Callable[[list[Any]], Any]]:
            given = described or describe_inputs(list(values)).to_json()
            fakes, mode = symbolic_inputs(dict(given), list(values))
            return aten_compiler(copy.deepcopy(graph), fakes, mode, {}, own, compiler)

        return make

    return replace(_ways(making(None), ambience), whole=_ways(making(description), ambience).compiled)


def captured_ways(
    backend: Any, options: Mapping[str, Any], ambience: Ambience = contextlib.nullcontext
) -> Compilers:
    """For captured graphs, which go to `backend`: `captured_ways("inductor", {}).lowered(part, [x])`."""

    def make(graph: GraphModule, values: Sequence[Any]) -> Callable[[], Callable[[list[Any]], Any]]:
        return captured_compiler(copy.deepcopy(graph), list(values), backend, dict(options))

    return _ways(make, ambience)


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
