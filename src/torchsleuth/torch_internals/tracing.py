"""Traces of torch's `make_fx`: aten calls above autograd, and graphs that a trace shows as one `invoke_subgraph` call.

Versions: `invoke_subgraph_infer` names a subgraph per trace and `force_compile_during_fx_trace` lets torch.compile run
inside a trace. Where a release lacks the first, names are counted here; where it lacks the second, the caller is told.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from torchsleuth.torch_internals.aot_autograd import Boxed, boxed

_numbers = itertools.count()


def pre_dispatch_trace(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> torch.fx.GraphModule:
    """The graph as aten calls above autograd, traced on Dynamo's fake values or on fakes of the inputs.

    Traced on the real inputs instead, a graph that changes an input would change it twice.
    """
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.traceback import preserve_node_meta

    placeholders = gm.graph.find_nodes(op="placeholder")
    known = all("example_value" in node.meta for node in placeholders)
    fakes = [node.meta["example_value"] for node in placeholders] if known else inputs

    def interpreted(*args: Any) -> Any:
        return torch.fx.Interpreter(gm).run(*args)

    tracing = "real" if known else "fake"
    with preserve_node_meta():
        return make_fx(interpreted, tracing_mode=tracing, pre_dispatch=True, _allow_non_fake_inputs=True)(
            *fakes
        )


def run_as_subgraph(graph: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Boxed:
    """A compiler for AOTAutograd: the graph itself, which under a `make_fx` trace leaves one call node."""
    module = importlib.import_module("torch._higher_order_ops.invoke_subgraph")
    name = f"sleuth_subgraph_{next(_numbers)}"

    def run(args: list[Any]) -> Any:
        operands = tuple(args)
        args.clear()
        if not _is_traced():
            return graph(*operands)
        if hasattr(module, "invoke_subgraph_infer"):
            return module.invoke_subgraph_infer(graph, *operands)
        return module.invoke_subgraph(graph, name, *operands)

    return boxed(run)


def compiling_inside_traces() -> AbstractContextManager[Any] | None:
    """A context in which torch.compile compiles although a trace is running; None where this torch cannot."""
    config: Any = importlib.import_module("torch._dynamo.config")
    if not hasattr(config, "force_compile_during_fx_trace"):
        return None
    return config.patch(force_compile_during_fx_trace=True)


def _is_traced() -> bool:
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    return get_proxy_mode() is not None
