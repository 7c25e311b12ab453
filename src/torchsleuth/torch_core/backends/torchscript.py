"""Backends on TorchScript: Dynamo's graph as it is, or AOTAutograd's graphs made ready for it.

TorchScript picks an operator's overload by itself, knows no device objects and takes every input for a tensor unless
told: so graphs are respelled first.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchsleuth.torch_core.backends.keyword_options import options_of
from torchsleuth.torch_core.backends.wrapped_errors import ScriptFails
from torchsleuth.torch_internals.aot_autograd import AotPlan, Boxed, boxed, through_aot
from torchsleuth.torch_internals.configuration import no_script_autocast


def sleuth_ts(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **given: Any) -> Callable[..., Any]:
    """Dynamo's graph under `torch.jit.script`."""
    options_of("sleuth_ts", given)
    return _scripted(gm)


def sleuth_aot_ts(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **given: Any
) -> Callable[..., Any]:
    """AOTAutograd's forward and backward, each under `torch.jit.script`."""
    options_of("sleuth_aot_ts", given)
    plan = AotPlan(_script_aten_graph, partition="default", keep_input_mutations=False)
    return through_aot(gm, example_inputs, plan)


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
            node.kwargs = {name: _plain(value) for name, value in node.kwargs.items()}
    return torch.fx.GraphModule(gm, graph)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, torch.device) else value
