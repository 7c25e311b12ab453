"""Backends on AOTAutograd with eager kernels, each one step further towards Inductor; and those on TorchScript.

TorchScript picks an operator's overload by itself, knows no device objects and takes every input for a tensor unless
told: so graphs are respelled first.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch

from torchsleuth.torch_core.backends.checked_ops import crossref_compiler
from torchsleuth.torch_core.backends.errors import (
    BadChoice,
    Graph,
    Inputs,
    MissingMode,
    NoNestedCompile,
    Run,
    ScriptFails,
    debugging_backend,
)
from torchsleuth.torch_internals import aot_autograd
from torchsleuth.torch_internals.aot_autograd import (
    AotPlan,
    Boxed,
    GraphCompiler,
    boxed,
    run_as_subgraph,
    run_boxed,
    through_aot,
)
from torchsleuth.torch_internals.configuration import crossref_setting, no_script_autocast


@debugging_backend
def sleuth_aot_eager(gm: Graph, inputs: Inputs, *, fw_compiler: Any = None, bw_compiler: Any = None) -> Run:
    """AOTAutograd, then eager kernels: `torch.compile(f, backend="sleuth_aot_eager")`."""
    return through_aot(gm, inputs, AotPlan(fw_compiler or run_boxed, bw_compiler or run_boxed))


@debugging_backend
def sleuth_aot_eager_default_partitioner(gm: Graph, inputs: Inputs) -> Run:
    """As `sleuth_aot_eager`, with the partitioner that saves everything and recomputes nothing."""
    return through_aot(gm, inputs, AotPlan(run_boxed, partition="default"))


@debugging_backend
def sleuth_aot_eager_decomp_partition(gm: Graph, inputs: Inputs) -> Run:
    """AOTAutograd as Inductor asks for it, decompositions and partitioner included, then eager kernels."""
    return through_aot(gm, inputs, _as_inductor(run_boxed))


@debugging_backend
def sleuth_aot_eager_decomp_partition_with_mode(gm: Graph, inputs: Inputs, *, mode: Any = None) -> Run:
    """As `sleuth_aot_eager_decomp_partition`, forward and backward under `options={"mode": ...}`."""
    if not hasattr(mode, "__enter__"):
        raise MissingMode("sleuth_aot_eager_decomp_partition_with_mode", mode)

    def under_mode(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Boxed:
        eager = run_boxed(graph, inputs)

        def run(args: list[Any]) -> Any:
            with mode:
                return eager(args)

        return boxed(run)

    return through_aot(gm, inputs, _as_inductor(under_mode))


@debugging_backend
def sleuth_aot_eager_decomp_partition_crossref(gm: Graph, inputs: Inputs, *, ops: Any = None) -> Run:
    """As `sleuth_aot_eager_decomp_partition`, each custom operator's fake side held against the real call.

    Every operator with `options={"ops": "all"}`, or with torch's own setting `fake_tensor_crossref = "all"`.
    """
    if ops is None:
        ops = "all" if crossref_setting() == "all" else "custom"
    if ops not in ("custom", "all"):
        raise BadChoice("sleuth_aot_eager_decomp_partition_crossref", "ops", ops, ("custom", "all"))
    plan = replace(_as_inductor(crossref_compiler(every_op=ops == "all")), checks_ops=True)
    return through_aot(gm, inputs, plan)


def _as_inductor(compiler: GraphCompiler) -> AotPlan:
    return AotPlan(compiler, partition="inductor", inductor_decompositions=True)


@debugging_backend
def sleuth_invoke_subgraph(gm: Graph, inputs: Inputs) -> Run:
    """AOTAutograd with eager kernels; trace it inside `compiling_inside_traces()` to see the subgraphs."""
    return through_aot(gm, inputs, AotPlan(run_as_subgraph))


def compiling_inside_traces() -> AbstractContextManager[Any]:
    """Lets torch.compile compile while an outer trace runs, which it otherwise refuses or inlines.

    Inside, `make_fx(torch.compile(f, backend="sleuth_invoke_subgraph"))(x)` is a graph with one call of a subgraph.
    """
    context = aot_autograd.compiling_inside_traces()
    if context is None:
        raise NoNestedCompile(torch.__version__)
    return context


@debugging_backend
def sleuth_ts(gm: Graph, inputs: Inputs) -> Run:
    """Dynamo's graph under `torch.jit.script`."""
    return _scripted(gm)


@debugging_backend
def sleuth_aot_ts(gm: Graph, inputs: Inputs) -> Run:
    """AOTAutograd's forward and backward, each under `torch.jit.script`."""
    plan = AotPlan(_script_aten_graph, partition="default", keep_input_mutations=False)
    return through_aot(gm, inputs, plan)


def _script_aten_graph(graph: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Boxed:
    with no_script_autocast():
        scripted = _scripted(graph)

    def run(args: list[Any]) -> Any:
        operands = tuple(args)
        args.clear()
        with no_script_autocast():
            return scripted(*operands)

    return boxed(run)


def _scripted(gm: torch.fx.GraphModule) -> Callable[..., Any]:
    try:
        with warnings.catch_warnings():
            # That TorchScript is old and what it thinks of fx's classes does not help whoever asks for it by name.
            warnings.simplefilter("ignore")
            return torch.jit.script(_respelled(gm))
    except Exception as error:
        raise ScriptFails(error) from error


def _respelled(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A copy in TorchScript's words; a new module, as those of Dynamo hold lazy code that it would compile too."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    for node in graph.nodes:
        if node.op == "placeholder" and isinstance(node.meta.get("val"), torch.SymInt):
            node.type = int
        elif node.op == "call_function":
            node.target = getattr(node.target, "overloadpacket", node.target)
            plain = {k: str(v) if isinstance(v, torch.device) else v for k, v in node.kwargs.items()}
            node.kwargs = plain
    return torch.fx.GraphModule(gm, graph)
