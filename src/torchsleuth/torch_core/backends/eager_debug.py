"""Eager, with every operator call of the forward held against its schema.

A wrong schema is invisible in eager and breaks compilers: they reorder, drop or share what the schema allows them to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchsleuth.torch_core.backends.keyword_options import options_of
from torchsleuth.torch_core.backends.node_steps import Steps
from torchsleuth.torch_core.backends.schema import after_call, before_call
from torchsleuth.torch_core.backends.wrapped_errors import SchemaMismatch
from torchsleuth.torch_internals.modes import watching_ops


def sleuth_eager_debug(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **given: Any
) -> Callable[..., Any]:
    """Runs the graph eagerly; an undeclared mutation or alias raises `SchemaMismatch`."""
    options_of("sleuth_eager_debug", given)

    def run(*args: Any) -> Any:
        steps = Steps(gm)

        def check(op: Any, op_args: tuple[Any, ...], op_kwargs: dict[str, Any], call: Callable) -> Any:
            before = before_call(op, op_args, op_kwargs)
            result = call()
            for difference in after_call(before, result):
                raise SchemaMismatch(str(op), difference, steps.place)
            return result

        with watching_ops(check):
            return steps.run(*args)

    return run
