"""Backends that run Dynamo's graph without compiling it: what fails here is not any compiler's fault."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchsleuth.torch_core.backends.keyword_options import options_of
from torchsleuth.torch_core.backends.node_steps import place_of
from torchsleuth.torch_core.backends.wrapped_errors import EagerFails
from torchsleuth.torch_internals.aot_autograd import pre_dispatch_trace

_log = logging.getLogger("torchsleuth.backends.pre_dispatch")


def sleuth_eager(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **given: Any) -> Callable[..., Any]:
    """Dynamo's graph as it is: `torch.compile(f, backend="sleuth_eager")`."""
    options_of("sleuth_eager", given)
    return gm.forward


def sleuth_eager_noexcept(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **given: Any
) -> Callable[..., Any]:
    """As `sleuth_eager`; an exception becomes `EagerFails`, which names the line of the generated code."""
    options_of("sleuth_eager_noexcept", given)
    # Asked for now: until then the module has no code, and would be called in a way that hides the line.
    code = gm.code

    def run(*args: Any) -> Any:
        try:
            return gm.forward(*args)  # calling the module itself would lose the traceback
        except Exception as error:
            line = _failing_line(gm, error)
            raise EagerFails(error, code, line, place_of(_node_of(gm, line))) from error

    return run


def sleuth_pre_dispatch_eager(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **given: Any
) -> Callable[..., Any]:
    """Logs the graph as aten calls above autograd (to stderr where logging is not set up), then runs that graph."""
    options_of("sleuth_pre_dispatch_eager", given)
    traced = pre_dispatch_trace(gm, example_inputs)
    _make_audible()
    _log.info(traced.print_readable(print_output=False))
    return traced.forward


def _failing_line(gm: torch.fx.GraphModule, error: BaseException) -> str:
    """The line of the graph's generated code that the exception passed through."""
    generated = type(gm).forward.__code__.co_filename
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == generated and frame.line:
            return frame.line.split(";  ")[0].strip()  # what follows only frees variables
    return ""


def _node_of(gm: torch.fx.GraphModule, line: str) -> torch.fx.Node | None:
    name = line.partition("=")[0].partition(":")[0].strip()
    return next((node for node in gm.graph.nodes if node.name == name), None)


def _make_audible() -> None:
    """Whoever picks this backend wants to see the graph, also where logging was never set up."""
    if not _log.hasHandlers():
        _log.addHandler(logging.StreamHandler())
    if _log.level == logging.NOTSET:
        _log.setLevel(logging.INFO)
