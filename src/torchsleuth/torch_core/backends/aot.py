"""Backends on AOTAutograd with eager kernels: each goes one step further towards Inductor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchsleuth.torch_core.backends.crossref import crossref_compiler
from torchsleuth.torch_core.backends.keyword_options import options_of
from torchsleuth.torch_core.backends.wrapped_errors import BadChoice, MissingMode
from torchsleuth.torch_internals.aot_autograd import (
    AotPlan,
    Boxed,
    GraphCompiler,
    boxed,
    run_boxed,
    through_aot,
)
from torchsleuth.torch_internals.configuration import crossref_setting


def sleuth_aot_eager(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **given: Any
) -> Callable[..., Any]:
    """AOTAutograd, then eager kernels: `torch.compile(f, backend="sleuth_aot_eager")`."""
    options = options_of("sleuth_aot_eager", given, known=("fw_compiler", "bw_compiler"))
    forward = options.get("fw_compiler") or run_boxed
    backward = options.get("bw_compiler") or run_boxed
    return through_aot(gm, example_inputs, AotPlan(forward, backward))


def sleuth_aot_eager_default_partitioner(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **given: Any
) -> Callable[..., Any]:
    """As `sleuth_aot_eager`, with the partitioner that saves everything and recomputes nothing."""
    options_of("sleuth_aot_eager_default_partitioner", given)
    return through_aot(gm, example_inputs, AotPlan(run_boxed, partition="default"))


def sleuth_aot_eager_decomp_partition(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **given: Any
) -> Callable[..., Any]:
    """AOTAutograd as Inductor asks for it, decompositions and partitioner included, then eager kernels."""
    options_of("sleuth_aot_eager_decomp_partition", given)
    return through_aot(gm, example_inputs, _as_inductor(run_boxed))


def sleuth_aot_eager_decomp_partition_with_mode(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **given: Any
) -> Callable[..., Any]:
    """As `sleuth_aot_eager_decomp_partition`, forward and backward under `options={"mode": ...}`."""
    name = "sleuth_aot_eager_decomp_partition_with_mode"
    options = options_of(name, given, known=("mode",))
    mode: Any = options.get("mode")
    if not hasattr(mode, "__enter__"):
        raise MissingMode(name, mode)

    def under_mode(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Boxed:
        eager = run_boxed(graph, inputs)

        def run(args: list[Any]) -> Any:
            with mode:
                return eager(args)

        return boxed(run)

    return through_aot(gm, example_inputs, _as_inductor(under_mode))


def sleuth_aot_eager_decomp_partition_crossref(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **given: Any
) -> Callable[..., Any]:
    """As `sleuth_aot_eager_decomp_partition`, each custom operator's fake side held against the real call.

    Every operator with `options={"ops": "all"}`, or with torch's own setting `fake_tensor_crossref = "all"`.
    """
    name = "sleuth_aot_eager_decomp_partition_crossref"
    default = "all" if crossref_setting() == "all" else "custom"
    ops = options_of(name, given, known=("ops",)).get("ops", default)
    if ops not in ("custom", "all"):
        raise BadChoice(name, "ops", ops, ("custom", "all"))
    plan = replace(_as_inductor(crossref_compiler(every_op=ops == "all")), checks_ops=True)
    return through_aot(gm, example_inputs, plan)


def _as_inductor(compiler: GraphCompiler) -> AotPlan:
    return AotPlan(compiler, partition="inductor", inductor_decompositions=True)
