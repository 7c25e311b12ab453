"""Making states from graphs and values, and checking that a state hangs together.

A state carries values only where they may matter: for a failure in compilation any value of the right form will
do. Inputs are parted from each other's memory unless the graph writes into one of them.
"""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchsleuth.cases.record import AmbientState, CompileSettings
from torchsleuth.graphs.cut import Cut
from torchsleuth.minify.search.contract import Input, State
from torchsleuth.script_runtime.inputs import load_inputs
from torchsleuth.tensors.specs import ScalarSpec, TensorSpec, describe_inputs
from torchsleuth.torch_internals.fake_kernels import fake_results
from torchsleuth.torch_internals.schemas import may_write


def state_of(
    graph: torch.fx.GraphModule,
    values: Sequence[Any],
    *,
    fakes: Sequence[Any] | None = None,
    settings: CompileSettings | None = None,
    any_values: bool = False,
) -> State:
    """A state of a graph and its real inputs; with `any_values` the values themselves are dropped.

    >>> state_of(gm, [torch.ones(2)])
    """
    description = describe_inputs(list(values), fakes)
    names = [n.name for n in graph.graph.nodes if n.op == "placeholder"]
    inputs = tuple(
        Input(name, spec, value if not any_values and isinstance(spec, TensorSpec) else None)
        for name, spec, value in zip(names, description.inputs, values, strict=True)
    )
    return State(
        graph, inputs, dict(description.symbols), settings or CompileSettings(), any_values=any_values
    )


def state_of_cut(state: State, piece: Cut, fakes: Mapping[str, Any] | None = None) -> State:
    """The state of a piece cut out of a state's graph."""
    writes = any(may_write(n) for n in piece.graph.graph.nodes)
    known = {i.name: i for i in state.inputs}
    values = [v if writes or not isinstance(v, torch.Tensor) else by_itself(v) for v in piece.values]
    symbolic = [(fakes or {}).get(name) for name in piece.names]
    made = state_of(piece.graph, values, fakes=symbolic if fakes else None, any_values=state.any_values)
    # What was free to have any value stays so.
    inputs = tuple(
        i if i.name not in known or known[i.name].value is not None else Input(i.name, i.spec)
        for i in made.inputs
    )
    settings = with_visible_outputs(state.settings, piece.graph)
    return with_bound_symbols(
        state.having(graph=piece.graph, inputs=inputs, symbols=made.symbols, settings=settings)
    )


def with_visible_outputs(settings: CompileSettings, graph: torch.fx.GraphModule) -> CompileSettings:
    """The settings with every output of the graph marked as one that the user sees, where they mark any."""
    if not settings.visible_outputs:
        return settings
    return replace(settings, visible_outputs=tuple(range(len(graph.graph.output_node().args[0]))))


def by_itself(value: torch.Tensor) -> torch.Tensor:
    """The tensor with the same strides on memory of its own, no larger than it reaches.

    >>> by_itself(torch.zeros(9)[3:5]).untyped_storage().nbytes()
    8
    """
    span = 0 if value.numel() == 0 else 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride()))
    with torch.no_grad():
        flat = value.detach().as_strided((span,), (1,)).clone()
        return flat.as_strided(value.shape, value.stride()).requires_grad_(value.requires_grad)


def real_inputs(state: State) -> list[Any]:
    """The inputs to run a state with, made anew: kept values where there are any, else values from a seed."""
    described = state.description.to_json()
    values = load_inputs(described)
    for place, given in enumerate(state.inputs):
        if given.value is not None:
            values[place] = given.value
    return copy.deepcopy(values)


@contextlib.contextmanager
def ambient(state: State) -> Iterator[None]:
    """Grad mode and autocast under which a graph of Dynamo's ran; after AOTAutograd both are written out in it.

    >>> with ambient(state):
    ...     state.graph(*real_inputs(state))
    """
    world = state.settings.state or AmbientState()
    captured = state.settings.level != "aot"
    needed = any(isinstance(i.spec, TensorSpec) and i.spec.requires_grad for i in state.inputs)
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(captured and needed and world.grad))
        for kind, dtype in world.autocast.items() if captured else ():
            stack.enter_context(torch.autocast(kind, dtype=getattr(torch, dtype.removeprefix("torch."))))
        yield


def fake_values(state: State) -> tuple[dict[str, Any], Exception | None]:
    """The fake result of each node by name, and what stopped the run, if anything did."""
    numbers = [i.spec.value if isinstance(i.spec, ScalarSpec) else None for i in state.inputs]
    return fake_results(state.graph, state.description.to_json(), numbers)


def fits(state: State) -> bool:
    """Whether the shapes and dtypes of a state's graph go together; what cannot be worked out counts as no."""
    return fake_values(state)[1] is None


def warm_up() -> None:
    """Has torch load what the first check of a state needs, a second or two, while something else is waited for."""
    graph = torch.fx.Graph()
    graph.output((graph.call_function(torch.ops.aten.relu.default, (graph.placeholder("x"),)),))
    fits(state_of(torch.fx.GraphModule(torch.nn.Module(), graph), [torch.ones(2)]))


def checked(state: State) -> State | None:
    """The state where it fits, else None."""
    return state if fits(state) else None


def with_bound_symbols(state: State) -> State:
    """The state with an input for each symbol that no size tells by itself, and without unused symbols."""
    if not state.symbols:
        return state
    used: dict[str, None] = {}
    bound: set[str] = set()
    for given in state.inputs:
        for text in _expressions(given):
            names = [name for name in re.findall(r"[A-Za-z_]\w*", text) if name in state.symbols]
            used.update(dict.fromkeys(names))
            bound.update(name for name in names if name == text)
    missing = [name for name in used if name not in bound]
    symbols = {name: spec for name, spec in state.symbols.items() if name in used}
    if not missing:
        return state.having(symbols=symbols)
    graph = copy.deepcopy(state.graph)
    first = next(iter(graph.graph.nodes))
    extra = []
    with graph.graph.inserting_before(first):
        for name in missing:
            node = graph.graph.placeholder(f"size_{name}")
            extra.append(Input(node.name, ScalarSpec("symint", symbols[name].hint, name)))
    graph.recompile()
    return state.having(graph=graph, inputs=(*extra, *state.inputs), symbols=symbols)


def _expressions(given: Input) -> list[str]:
    if isinstance(given.spec, ScalarSpec):
        return [given.spec.expr] if given.spec.expr else []
    texts = [*(given.spec.shape_expr or ()), *(given.spec.stride_expr or ())]
    return texts + ([given.spec.offset_expr] if given.spec.offset_expr else [])
