"""Backends that fail on purpose, for testing debuggers: each in one way, on relu alone or on inputs with a history.

A relu is a relu however it is spelled: function, method, module, in place, or aten. The captured graph is not changed;
the fault is put into a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchsleuth.torch_core.backends.errors import (
    Graph,
    Inputs,
    NonLeafCompileError,
    ReluCompileError,
    ReluRuntimeError,
    Run,
    debugging_backend,
)

_RELUS = (
    torch.relu,
    torch.relu_,
    torch.nn.functional.relu,
    torch.nn.functional.relu_,
    torch.Tensor.relu,
    torch.Tensor.relu_,
    torch.ops.aten.relu.default,
    torch.ops.aten.relu_.default,
)


@debugging_backend
def sleuth_relu_compile_error(gm: Graph, inputs: Inputs) -> Run:
    """Raises `ReluCompileError` while it compiles a graph with a relu; runs any other eagerly."""
    for module in gm.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            if _is_relu(module, node):
                raise ReluCompileError(f"no relu here: {node.format_node()}")
    return gm.forward


@debugging_backend
def sleuth_relu_runtime_error(gm: Graph, inputs: Inputs) -> Run:
    """Compiles; each relu raises `ReluRuntimeError` when it runs."""
    return _with_relu(gm, _failing_relu).forward


@debugging_backend
def sleuth_relu_accuracy_error(gm: Graph, inputs: Inputs) -> Run:
    """Compiles and runs; each relu(x) gives x + 1."""
    return _with_relu(gm, _wrong_relu).forward


@debugging_backend
def sleuth_non_leaf_compile_error(gm: Graph, inputs: Inputs) -> Run:
    """Raises `NonLeafCompileError` for a graph that calls something and has an input with a gradient history."""
    calls = any(node.op.startswith("call_") for node in gm.graph.nodes)
    for number, value in enumerate(inputs):
        if calls and isinstance(value, torch.Tensor) and not value.is_leaf:
            raise NonLeafCompileError(f"input {number} is not a leaf")
    return gm.forward


def _failing_relu(x: torch.Tensor) -> torch.Tensor:
    raise ReluRuntimeError(f"no relu here: its input has shape {list(x.shape)}")


def _wrong_relu(x: torch.Tensor) -> torch.Tensor:
    return torch.add(x, 1)


def _with_relu(gm: torch.fx.GraphModule, relu: Callable[..., Any]) -> torch.fx.GraphModule:
    """A graph like `gm`, nested ones included, that calls `relu` for each relu; parameters are shared, not copied."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    copied = torch.fx.GraphModule(gm, graph)
    for node in graph.nodes:
        if _is_relu(gm, node):
            node.op, node.target, node.args, node.kwargs = (
                "call_function",
                relu,
                (node.all_input_nodes[0],),
                {},
            )
        elif node.op == "get_attr":
            nested = getattr(gm, node.target, None)
            if isinstance(nested, torch.fx.GraphModule):
                setattr(copied, node.target, _with_relu(nested, relu))
    copied.recompile()
    return copied


def _is_relu(module: torch.nn.Module, node: torch.fx.Node) -> bool:
    if node.op == "call_module":
        return isinstance(module.get_submodule(str(node.target)), torch.nn.ReLU)
    if node.op == "call_method":
        return node.target in ("relu", "relu_")
    return node.op == "call_function" and node.target in _RELUS
