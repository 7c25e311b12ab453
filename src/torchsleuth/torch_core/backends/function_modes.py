"""Backends that run what another backend compiled under torch-function modes, which Dynamo then need not trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchsleuth.torch_internals.hooks import registered_backend


def with_torch_function_modes(
    modes: TorchFunctionMode | Iterable[TorchFunctionMode], inner: str | Callable[..., Any] = "eager"
) -> Callable[..., Callable[..., Any]]:
    """A backend that compiles with `inner` and runs the result under `modes`, the first outermost.

    Use: `torch.compile(f, backend=with_torch_function_modes([Counting()], inner="sleuth_aot_eager"))`.
    Options given to torch.compile reach `inner`.
    """
    entered = (modes,) if isinstance(modes, TorchFunctionMode) else tuple(modes)

    def sleuth_torch_function_modes(
        gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **given: Any
    ) -> Callable[..., Any]:
        compiled = registered_backend(inner)(gm, example_inputs, **given)

        def run(*args: Any) -> Any:
            with ExitStack() as stack:
                for mode in entered:
                    stack.enter_context(mode)
                return compiled(*args)

        return run

    return sleuth_torch_function_modes
