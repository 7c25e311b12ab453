"""Small services of torch's tracer and registry that the debugging backends need."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch


def backend_named(name: str | Callable[..., Any]) -> Callable[..., Any]:
    """The backend behind a name that torch.compile would take: `backend_named("eager")`; a callable is itself.

    2.11..2.15: `lookup_backend` of the registry.
    """
    if callable(name):
        return name
    return importlib.import_module("torch._dynamo.backends.registry").lookup_backend(name)


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


def crossref_setting() -> str | bool:
    """`torch._functorch.config.fake_tensor_crossref`: False, "custom_ops" or "all". Alike in 2.11..2.15."""
    config: Any = importlib.import_module("torch._functorch.config")
    return getattr(config, "fake_tensor_crossref", False)


@contextlib.contextmanager
def no_script_autocast() -> Iterator[None]:
    """TorchScript's own autocast is off inside: AOTAutograd's graphs hold the casts already. Alike in 2.11..2.15."""
    before = torch._C._jit_set_autocast_mode(False)
    try:
        yield
    finally:
        torch._C._jit_set_autocast_mode(before)
