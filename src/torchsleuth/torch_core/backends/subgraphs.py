"""A backend whose forward and backward an outer `make_fx` trace shows as one `invoke_subgraph` call each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from torchsleuth.torch_core.backends.keyword_options import options_of
from torchsleuth.torch_core.backends.wrapped_errors import NoNestedCompile
from torchsleuth.torch_internals import aot_autograd
from torchsleuth.torch_internals.aot_autograd import (
    AotPlan,
    run_as_subgraph,
    through_aot,
)


def sleuth_invoke_subgraph(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **given: Any
) -> Callable[..., Any]:
    """AOTAutograd with eager kernels; trace it inside `compiling_inside_traces()` to see the subgraphs."""
    options_of("sleuth_invoke_subgraph", given)
    return through_aot(gm, example_inputs, AotPlan(run_as_subgraph))


def compiling_inside_traces() -> AbstractContextManager[Any]:
    """Lets torch.compile compile while an outer trace runs, which it otherwise refuses or inlines.

    Inside, `make_fx(torch.compile(f, backend="sleuth_invoke_subgraph"))(x)` is a graph with one call of a subgraph.
    """
    context = aot_autograd.compiling_inside_traces()
    if context is None:
        raise NoNestedCompile(torch.__version__)
    return context
