"""A compile that stops after Inductor's lowering: the lowered graph is evaluated, no code is generated from it.

One idea: a run that differs in one thing answers which side of it is at fault. If the evaluated graph is right
where generated code is wrong, code generation (scheduler, C++ or Triton) is at fault; if it is wrong or fails in
the same way, the lowering or what comes before it is.
Differs between torch versions: `GraphLowering.compile_to_module` is the step replaced, from 2.11 on; what the
compile asks of the scheduler afterwards is answered by an empty one.
"""

from __future__ import annotations

import contextlib
import importlib
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torchsleuth.torch_internals.inductor_ir import why_not_interpretable
from torchsleuth.torch_internals.inductor_ir.expressions import NotInterpretable
from torchsleuth.torch_internals.inductor_ir.graph import run_graph

__all__ = ["NotInterpretable", "interpreted_lowering", "without_caches"]

# A cached compile would skip the lowering, and ours must not be found by the next one.
_CACHES = {
    "torch._inductor.config": ("fx_graph_cache", "fx_graph_remote_cache"),
    "torch._functorch.config": ("enable_autograd_cache", "enable_remote_autograd_cache"),
}


@contextlib.contextmanager
def interpreted_lowering() -> Iterator[None]:
    """Inside, what Inductor compiles runs by evaluating its lowered graph; forward and backward alike.

    A graph that cannot be evaluated raises NotInterpretable when it is called, a torch that is not known does at once.

    >>> with interpreted_lowering(): torch.compile(torch.relu)(x)
    tensor([0., 2.])
    """
    why = why_not_interpretable()
    if why is not None:
        raise NotInterpretable(why)
    lowering = importlib.import_module("torch._inductor.graph").GraphLowering
    original = lowering.compile_to_module
    with without_caches():
        lowering.compile_to_module = _interpreted_module
        try:
            yield
        finally:
            lowering.compile_to_module = original


@contextlib.contextmanager
def without_caches() -> Iterator[None]:
    """Inside, every compile goes all its way: `with without_caches(): torch.compile(torch.relu)(x)`."""
    with contextlib.ExitStack() as stack:
        for module, keys in _CACHES.items():
            config = importlib.import_module(module)
            stack.enter_context(config.patch({key: False for key in keys if hasattr(config, key)}))
        yield


def _interpreted_module(graph: Any) -> Any:
    """What the compile takes for its loaded module: `call` gets the list of inputs and empties it."""
    config = importlib.import_module("torch._inductor.config")
    asserts = bool(config.size_asserts)
    graph.scheduler = SimpleNamespace(nodes=[])
    # Its evaluation looks at values on the way, which a recorded CUDA graph cannot.
    graph.disable_cudagraphs_reason = "the lowered graph is evaluated, not compiled"

    def call(inputs: list[Any]) -> tuple[Any, ...]:
        values = list(inputs)
        inputs.clear()
        try:
            return tuple(run_graph(graph, values, {}, asserts))
        except AttributeError as error:
            if _raised_here(error):
                raise NotInterpretable(
                    f"this torch's lowered graphs are built differently: {error}"
                ) from error
            raise

    return SimpleNamespace(call=call)


def _raised_here(error: BaseException) -> bool:
    """Whether our own walk over the graph raised it, not something that the walk called."""
    innermost = traceback.extract_tb(error.__traceback__)[-1]
    return Path(innermost.filename).parent == Path(__file__).parent
