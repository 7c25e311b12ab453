"""Run a captured graph as it is, and remember what its float64 twin must know: dtypes and random draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from torchsleuth.compare.reference import opkinds
from torchsleuth.compare.reference.cloning import (
    clone_inputs,
    restore,
    same_bits,
    snapshot,
    tensors_in,
)
from torchsleuth.compare.reference.float64 import (
    HERE,
    Dtypes,
    Places,
    any_layout,
    dtypes_of,
    fetch,
    narrow,
    widen,
)
from torchsleuth.compare.reference.rng import RngState, restore_rng, save_rng
from torchsleuth.compare.reference.trees import leaves
from torchsleuth.compare.reference.written import for_one_run
from torchsleuth.torch_internals.schemas import may_write

MUTATED = " (mutated)"
"""How the path of an input ends whose value after the run is a result of it."""


@dataclass
class RunResult:
    """What one run produced: leaves by path, mutated inputs included."""

    values: dict[str, Any] = field(default_factory=dict)


def result_of(outputs: Any, inputs: Sequence[Any] = (), mutated: Sequence[int] = ()) -> RunResult:
    """Outputs and the inputs at the given positions as leaves by path."""
    values = dict(leaves(outputs))
    for position in mutated:
        values[f"inputs[{position}]{MUTATED}"] = inputs[position]
    return RunResult(values)


class EagerRun(Interpreter):
    """Run the graph as it is and remember dtypes and what random nodes drew."""

    def __init__(self, graph: GraphModule) -> None:
        super().__init__(graph)
        self.dtypes: dict[str, Any] = {}
        self.drawn: dict[str, Any] = {}
        self.states: dict[str, RngState] = {}
        """The generators before each node that mixes what it draws with what it is given."""

    def call_function(self, target: Any, args: tuple, kwargs: dict) -> Any:
        return super().call_function(any_layout(target), args, kwargs)

    def run_node(self, n: Node) -> Any:
        draws = opkinds.draws(n)
        if draws and opkinds.dropout_rate(n) is None and self._reads_floats(n):
            self.states[n.name] = save_rng()
        value = super().run_node(n)
        self.dtypes[n.name] = dtypes_of(value)
        if draws:
            self.drawn[n.name] = clone_inputs(value)
        return value

    def _reads_floats(self, n: Node) -> bool:
        given = [self.dtypes.get(a.name) for a in n.all_input_nodes]
        floats = any(isinstance(d, torch.dtype) and d.is_floating_point for d in given)
        return n.op == "call_function" and floats and not opkinds.plain_name(n).endswith("_like")


def run_eager(
    graph: GraphModule, inputs: Sequence[Any], start: RngState | None
) -> tuple[RunResult, EagerRun, tuple[int, ...]]:
    """The results of a graph, the run that made them, and which inputs it writes; inputs and graph stay as they are."""
    recorder = EagerRun(graph)
    if start is not None:
        restore_rng(start)
    if not any(may_write(n) for n in graph.graph.nodes):
        return result_of(recorder.run(*inputs)), recorder, ()
    state = snapshot(graph_state(graph))
    fresh = for_one_run(graph, inputs)
    outputs = clone_inputs(recorder.run(*fresh))
    mutated = tuple(
        i
        for i, (a, b) in enumerate(zip(inputs, fresh))
        if isinstance(a, torch.Tensor) and a is not b and not same_bits(a, b)
    )
    result = result_of(outputs, fresh, mutated)
    restore(state)
    return result, recorder, mutated


def graph_state(graph: GraphModule) -> list[torch.Tensor]:
    """The tensors a graph holds: parameters, buffers and constants that its nodes read."""
    held = [fetch(graph, str(n.target)) for n in graph.graph.nodes if n.op == "get_attr"]
    found = [t for t in held if isinstance(t, torch.Tensor)]
    return tensors_in([*found, *graph.parameters(), *graph.buffers()])


def substitutes(
    graph: GraphModule, recorder: EagerRun, places: Places = HERE
) -> dict[str, Callable[..., Any]]:
    """For every random node, a function that gives in float64 what eager drew."""
    found: dict[str, Callable[..., Any]] = {}
    for node in graph.graph.nodes:
        if node.name in recorder.states:
            found[node.name] = _drawn_again(node, recorder.dtypes, recorder.states[node.name], places)
        elif node.name in recorder.drawn:
            drawn = recorder.drawn[node.name]
            rate = opkinds.dropout_rate(node)
            value = places.moved_here(widen(drawn))
            found[node.name] = _constant(value) if rate is None else _masked(value, rate)
    return found


def _constant(value: Any) -> Callable[..., Any]:
    def draw(*args: Any, **kwargs: Any) -> Any:
        return clone_inputs(value)

    return draw


def _masked(value: Any, rate: float) -> Callable[..., Any]:
    """Dropout with the mask that eager drew; an input that is zero anyway hides its own mask harmlessly."""

    def draw(source: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        kept = (value[0] if isinstance(value, tuple) else value) != 0
        scale = 1.0 / (1.0 - rate) if rate < 1.0 else 0.0
        dropped = torch.where(kept, source * scale, torch.zeros_like(source))
        return (dropped, *value[1:]) if isinstance(value, tuple) else dropped

    return draw


def _drawn_again(node: Node, dtypes: Dtypes, state: RngState, places: Places) -> Callable[..., Any]:
    """The node itself, on rounded inputs, with the same random numbers: attention that drops weights knows no other."""

    def draw(*args: Any, **kwargs: Any) -> Any:
        def as_it_was(given: Any, was: Any) -> Any:
            return places.moved_home(narrow(given, dtypes.get(was.name)) if isinstance(was, Node) else given)

        own = tuple(as_it_was(given, was) for given, was in zip(args, node.args))
        named = {key: as_it_was(value, node.kwargs.get(key)) for key, value in kwargs.items()}
        restore_rng(state)
        return places.moved_here(widen(node.target(*own, **named)))

    return draw
