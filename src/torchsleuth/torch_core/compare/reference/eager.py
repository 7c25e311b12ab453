"""Run a captured graph as it is, and remember what its float64 twin must know: dtypes and random draws.

Rounding is modelled node by node, so a nested graph that always runs, like a checkpointed layer, is written into the
graph that calls it (`inlined`); branches and loops stay calls, because which of their nodes run depends on values.
What random numbers were drawn is given again to other runs: those that the compiled code drew to eager
(`handed_over`), those of eager to float64 (`substitutes`). Memory that a graph asks for and does not write holds
anything in eager, too: a run with zeros in it is the reference, and what another filling changes is not compared.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Interpreter, Node

from torchsleuth.torch_core.compare.reference import opkinds
from torchsleuth.torch_core.compare.reference.cloning import (
    clone_inputs,
    for_one_run,
    restore,
    same_bits,
    snapshot,
    tensors_in,
)
from torchsleuth.torch_core.compare.reference.float64 import (
    SAME_DEVICE,
    Dtypes,
    Given,
    Places,
    any_layout,
    dtypes_of,
    fetch,
    narrow,
    widen,
)
from torchsleuth.torch_core.compare.reference.opkinds import plain_name
from torchsleuth.torch_core.compare.reference.rng import Draw, RngState, noting_draws, restore_rng, save_rng
from torchsleuth.torch_core.compare.reference.trees import is_inexact, leaves
from torchsleuth.torch_internals.schemas import may_write
from torchsleuth.torch_internals.tensors import transforms_ended

ALWAYS_RUN = frozenset(["invoke_subgraph", "tag_activation_checkpoint", "wrap", "wrap_activation_checkpoint"])
"""Higher-order ops that call their graph once with their operands and return what it returns."""


def inlined(graph: GraphModule) -> GraphModule:
    """The graph with every nested graph that always runs written out; the graph itself when there is none.

    Example: `inlined(captured)(*inputs)` gives what `captured(*inputs)` gives.
    """
    if not any(_called_graph(graph, node) for node in graph.graph.nodes):
        return graph
    flat = Graph()
    flat.output(_copy(graph, graph, "", flat, None))
    attributes = {
        str(n.target): fetch(graph, str(n.target)) for n in flat.nodes if n.op in ("get_attr", "call_module")
    }
    return GraphModule(attributes, flat)


def _called_graph(owner: GraphModule, node: Node) -> GraphModule | None:
    if node.op != "call_function" or getattr(node.target, "__name__", "") not in ALWAYS_RUN or not node.args:
        return None
    first = node.args[0]
    called = fetch(owner, str(first.target)) if isinstance(first, Node) and first.op == "get_attr" else None
    if not isinstance(called, GraphModule):
        return None
    wanted = sum(n.op == "placeholder" for n in called.graph.nodes)
    return called if wanted == len(_operands(node)) else None


def _operands(node: Node) -> list[Any]:
    # invoke_subgraph names its graph in a string between the graph and its operands.
    return [a for a in node.args[1:] if not isinstance(a, str)]


def _copy(root: GraphModule, owner: GraphModule, prefix: str, flat: Graph, operands: list[Any] | None) -> Any:
    """Copy a graph's nodes into `flat`; returns what its output stands for there."""
    env: dict[Node, Any] = {}
    given, look_up = iter(operands or []), env.__getitem__
    for node in owner.graph.nodes:
        called = _called_graph(owner, node)
        if node.op == "placeholder" and operands is not None:
            env[node] = next(given)
        elif node.op == "output":
            return torch.fx.map_arg(node.args[0], look_up)
        elif called is not None:
            inner = [torch.fx.map_arg(a, look_up) for a in _operands(node)]
            path = f"{prefix}{node.args[0].target}."
            env[node] = _copy(root, called, path, flat, inner)
        elif node.target is operator.getitem and isinstance(env[node.args[0]], (list, tuple)):
            env[node] = env[node.args[0]][node.args[1]]
        elif not (node.op == "get_attr" and all(_called_graph(owner, user) for user in node.users)):
            env[node] = flat.node_copy(node, look_up)
            if node.op in ("get_attr", "call_module"):
                env[node].target = prefix + str(node.target)
    raise ValueError("a graph without an output cannot be judged")


MUTATED = " (mutated)"
"""How the path of an input ends whose value after the run is a result of it."""


Values = dict[str, Any]
"""What one run produced: leaves by path, mutated inputs included."""


def result_of(outputs: Any, inputs: Sequence[Any] = (), mutated: Sequence[int] = ()) -> Values:
    """Outputs and the inputs at the given positions as leaves by path."""
    values = dict(leaves(outputs))
    for position in mutated:
        values[f"inputs[{position}]{MUTATED}"] = inputs[position]
    return values


class EagerRun(Interpreter):
    """Run the graph as it is and remember dtypes and what random nodes drew."""

    def __init__(self, graph: GraphModule, given: Given | None = None) -> None:
        super().__init__(graph)
        self.given = given or {}
        """What stands for nodes that draw, by name, so that they draw nothing."""
        self.dtypes: dict[str, Any] = {}
        self.drawn: dict[str, Any] = {}
        self.masks: dict[str, torch.Tensor] = {}
        """What each dropout kept, where it is known; its result does not tell where what it was given is zero."""
        self.states: dict[str, RngState] = {}
        """The generators before each node that mixes what it draws with what it is given."""

    def call_function(self, target: Any, args: tuple, kwargs: dict) -> Any:
        return super().call_function(any_layout(target), args, kwargs)

    def run_node(self, n: Node) -> Any:
        draws = opkinds.draws(n)
        if draws and opkinds.dropout_rate(n) is None and self._reads_floats(n):
            self.states[n.name] = save_rng()
        if n.name in self.given:
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            given = self.given[n.name]
            value = given(*args, **kwargs)
            if isinstance(given, Dropped):
                self.masks[n.name] = given.mask
        elif draws and opkinds.dropout_rate(n) is not None:
            with noting_draws(noted := list[Draw]()):
                value = super().run_node(n)
            if len(noted) == 1 and noted[0].value is not None:
                self.masks[n.name] = noted[0].value.bool()
        else:
            value = super().run_node(n)
        self.dtypes[n.name] = dtypes_of(value)
        if draws:
            self.drawn[n.name] = clone_inputs(value)
        return value

    def _reads_floats(self, n: Node) -> bool:
        given = [self.dtypes.get(a.name) for a in n.all_input_nodes]
        floats = any(isinstance(d, torch.dtype) and d.is_floating_point for d in given)
        fills = plain_name(n).endswith("_like") or opkinds.fills_memory(n)
        return n.op == "call_function" and floats and not fills


def run_eager(
    graph: GraphModule,
    inputs: Sequence[Any],
    start: RngState | None,
    given: Given | None = None,
) -> tuple[Values, EagerRun, tuple[int, ...]]:
    """The results of a graph, the run that made them, and which inputs it writes; inputs and graph stay as they are."""
    recorder = EagerRun(graph, given)
    if start is not None:
        restore_rng(start)
    if not any(may_write(n) for n in graph.graph.nodes):
        with transforms_ended():
            return result_of(recorder.run(*inputs)), recorder, ()
    state = snapshot(graph_state(graph))
    fresh = for_one_run(graph, inputs)
    with transforms_ended():
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


def handed_over(graph: GraphModule, drawn: Sequence[Draw]) -> Given:
    """What a compiled graph drew, for the nodes of the graph that draw; raises `OtherDraws` where the two do not fit.

    So does a run of the graph that meets another shape.
    Example: `run_eager(graph, inputs, None, handed_over(graph, drawn))` uses the masks that the compiled code used.
    """
    nodes = [n for n in graph.graph.nodes if opkinds.draws(n)]
    if len(nodes) != len(drawn) or any(opkinds.may_draw(n) and n not in nodes for n in graph.graph.nodes):
        raise OtherDraws
    found: dict[str, Callable[..., Any]] = {}
    for node, draw in zip(nodes, drawn):
        rate, name = opkinds.dropout_rate(node), plain_name(node)
        same = name.removesuffix("_like") == draw.name.removesuffix("_like")
        masks = (rate is not None or name == "bernoulli") and draw.name in (*opkinds.DROPOUT, "bernoulli")
        if draw.value is None or not (same or masks):
            raise OtherDraws
        if rate is None:
            found[node.name] = _of_shape(draw.value)
        else:
            found[node.name] = Dropped(draw.value.bool(), rate, name == "native_dropout")
    return found


class OtherDraws(Exception):
    """What a compiled graph drew is not what the graph draws: more, fewer, by other operators or of other shapes."""


def _of_shape(value: torch.Tensor) -> Callable[..., Any]:
    def draw(*args: Any, **kwargs: Any) -> Any:
        like = args[0] if args else None
        # Of `randint` and `randperm` it is a number.
        shape = like.shape if isinstance(like, torch.Tensor) else like
        if isinstance(shape, (list, tuple)) and tuple(shape) != tuple(value.shape):
            raise OtherDraws
        # A dropout's mask where the graph draws zeros and ones.
        masks = value.dtype == torch.bool and isinstance(like, torch.Tensor)
        return value.to(like.dtype, copy=True) if masks and like is not None else value.clone()

    return draw


@dataclass(frozen=True)
class Dropped:
    """Stands for a dropout whose mask is known: called with what it is given."""

    mask: torch.Tensor
    rate: float
    gives_mask: bool

    def __call__(self, source: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if source.shape != self.mask.shape:
            raise OtherDraws
        scale = 1.0 / (1.0 - self.rate) if self.rate < 1.0 else 0.0
        if source.device.type == "cpu":
            # There dropout divides a mask of the values' own dtype: in bfloat16 1 / 0.9 is 1.109.
            scale = torch.tensor(scale, dtype=source.dtype, device="cpu").item()
        dropped = source * self.mask * scale
        return (dropped, self.mask.bool().clone()) if self.gives_mask else dropped


def substitutes(
    graph: GraphModule, recorder: EagerRun, places: Places | None = SAME_DEVICE
) -> dict[str, Callable[..., Any]]:
    """For every random node, a function that gives what eager drew: in float64 at `places`, or as it was where None."""
    found: dict[str, Callable[..., Any]] = {}
    for node in graph.graph.nodes:
        if node.name in recorder.states:
            found[node.name] = _drawn_again(node, recorder.dtypes, recorder.states[node.name], places)
        elif node.name in recorder.drawn:
            value, mask = recorder.drawn[node.name], recorder.masks.get(node.name)
            if places is not None:
                value, mask = places.to_device(widen(value)), places.to_device(mask)
            rate = opkinds.dropout_rate(node)
            found[node.name] = _constant(value) if rate is None else _masked(value, rate, mask)
    return found


def _constant(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: clone_inputs(value)


def _masked(value: Any, rate: float, mask: torch.Tensor | None) -> Callable[..., Any]:
    """Dropout with the mask that eager drew; where that is not known, it is what is not zero in what eager gave."""

    def draw(source: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        kept = mask if mask is not None else value[1].bool() if isinstance(value, tuple) else value != 0
        scale = 1.0 / (1.0 - rate) if rate < 1.0 else 0.0
        dropped = torch.where(kept, source * scale, torch.zeros_like(source))
        return (dropped, *value[1:]) if isinstance(value, tuple) else dropped

    return draw


def _drawn_again(node: Node, dtypes: Dtypes, state: RngState, places: Places | None) -> Callable[..., Any]:
    """The node itself, on rounded inputs, with the same random numbers: attention that drops weights knows no other."""

    def draw(*args: Any, **kwargs: Any) -> Any:
        if places is None:
            restore_rng(state)
            return node.target(*args, **kwargs)

        def as_it_was(given: Any, was: Any) -> Any:
            return places.to_graph(narrow(given, dtypes.get(was.name)) if isinstance(was, Node) else given)

        own = tuple(as_it_was(given, was) for given, was in zip(args, node.args))
        named = {key: as_it_was(value, node.kwargs.get(key)) for key, value in kwargs.items()}
        restore_rng(state)
        return places.to_device(widen(node.target(*own, **named)))

    return draw


_MAKES = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}
# What no program writes by itself, and what does not disappear beside other numbers.
_OTHER = 1.7e30


def filled_memory(graph: GraphModule, zeros: bool) -> dict[str, Callable[..., Any]]:
    """For each call that only asks for memory, a function that gives it full of zeros, or of something else.

    >>> list(filled_memory(torch.fx.symbolic_trace(lambda x: x.new_empty(2) + x), zeros=True))
    ['new_empty']
    """
    return {node.name: _filled(node, zeros) for node in graph.graph.nodes if plain_name(node) in _MAKES}


def _filled(node: Node, zeros: bool) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        if node.op == "call_method":
            memory = getattr(args[0], str(node.target))(*args[1:], **kwargs)
        else:
            memory = node.target(*args, **kwargs)
        return widen(memory.fill_(0 if zeros else _OTHER if is_inexact(memory) else 1))

    return make


def of_unwritten_memory(values: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """By path, which elements are others where the memory holds something else; paths without any are left out.

    >>> of_unwritten_memory({"a": torch.tensor([1.0, 2.0])}, {"a": torch.tensor([1.0, 3.0])})
    {'a': tensor([False,  True])}
    """
    found = {}
    for path, value in values.items():
        other = others.get(path)
        if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor):
            if value.shape != other.shape:
                found[path] = torch.ones_like(value, dtype=torch.bool)
                continue
            differs = (value != other) & ~((value != value) & (other != other))
            if bool(differs.any()):
                found[path] = differs
    return found
