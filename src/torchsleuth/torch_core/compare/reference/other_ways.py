"""Eager's other ways to compute the values of a graph: other kernels, layouts, formats, orders, inputs a step away.

How far they lie from each other is what a person means by "the same up to rounding": what lies within is not wrong.
Each way is a context around an ordinary run of the graph, or a change of its inputs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchsleuth.torch_core.compare.reference import opkinds
from torchsleuth.torch_core.compare.reference.cloning import (
    alone_in_memory,
    clone_inputs,
    map_tensors,
    tensors_in,
)
from torchsleuth.torch_core.compare.reference.eager import EagerRun, Given, Values, run_eager, substitutes
from torchsleuth.torch_internals.decompositions import decomposition_of
from torchsleuth.torch_internals.modes import watching_ops
from torchsleuth.torch_internals.operators import is_view, short_name
from torchsleuth.torch_internals.schemas import is_torchs_own

SHORT = (torch.bfloat16, torch.float16)

SUMS = frozenset(["sum", "mean", "var", "std", "var_mean", "std_mean"])

CUT_BITS = 13
"""Bits of float32 that TF32 has not."""


def equivalent_runs(
    graph: GraphModule, inputs: Sequence[Any], recorder: EagerRun, device: torch.device, memory: Given
) -> Iterator[tuple[str, Values]]:
    """What eager gives in each of its other ways to compute the graph, with the random numbers of the first run.

    `memory` stands for the nodes that ask for memory which the graph does not write. A way that the graph does not take
    is left out.
    Example: `dict(equivalent_runs(gm, [x], recorder, x.device, {}))["without oneDNN"]["outputs[0]"]`.
    """
    drawn = {**substitutes(graph, recorder, None), **memory}
    for name, setting, change in _ways(graph, device, recorder):
        try:
            with setting:
                result = run_eager(graph, change(inputs), None, drawn)[0]
        except (RuntimeError, NotImplementedError, ValueError, TypeError):  # a kernel that is missing there
            continue
        yield name, result


Way = tuple[str, AbstractContextManager[Any], Callable[[Sequence[Any]], Sequence[Any]]]


def _ways(graph: GraphModule, device: torch.device, recorder: EagerRun) -> Iterator[Way]:
    yield "inputs a step away", nullcontext(), _a_step_away
    yield "biases added by themselves", _biases_apart(), list
    if any(dtype in SHORT for dtype in recorder.dtypes.values()):
        yield "sums of what is not rounded yet", _sums_before_rounding(), list
    if not any("stride" in opkinds.plain_name(n) or _is_anothers(n) for n in graph.graph.nodes):
        yield "another layout", nullcontext(), _in_other_layouts
    if device.type == "cuda":
        cut = _cut_factors(
            products=torch.get_float32_matmul_precision() != "highest",
            convolutions=torch.backends.cudnn.allow_tf32,
        )
        yield "without cuDNN", torch.backends.cudnn.flags(enabled=False), list
        yield "deterministic, without TF32", _without_tf32(nullcontext(), deterministic=True), list
        yield "factors cut off to TF32", _without_tf32(cut), list
    else:
        yield "without oneDNN", _without_onednn(), list


def _is_anothers(n: Node) -> bool:
    """Whether a node runs code that torch does not ship, which may read memory as it likes."""
    return n.op == "call_module" or (n.op.startswith("call_") and not is_torchs_own(n.target))


@contextlib.contextmanager
def _without_onednn() -> Iterator[None]:
    before = torch.backends.mkldnn.set_flags(False)[0]  # its `flags` sets formats as well, and warns
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(before)


@contextlib.contextmanager
def _without_tf32(within: AbstractContextManager[Any], **flags: Any) -> Iterator[None]:
    """Convolutions and products of all their bits, with these flags of cuDNN."""
    before = torch.get_float32_matmul_precision()
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False, **flags):
        torch.set_float32_matmul_precision("highest")
        try:
            with within:
                yield
        finally:
            torch.set_float32_matmul_precision(before)


def _cut_factors(products: bool = True, convolutions: bool = True) -> AbstractContextManager[Any]:
    """Products of factors whose last bits are dropped: tensor cores do, where a kernel does not round before.

    cuBLAS rounds and Triton's products cut off, so all of them are off the same way, by up to a step. Torch lets
    convolutions be shortened unless it is told not to, which is no excuse for a matrix product.
    """

    def cut(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype != torch.float32 or value.dim() < 2:
            return value
        return (value.view(torch.int32) & ~((1 << CUT_BITS) - 1)).view(torch.float32)

    def product(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: Callable[[], Any]) -> Any:
        name = short_name(op)
        of_cudnn = "conv" in name or name in ("lstm", "gru")
        allowed = convolutions if of_cudnn else products
        if name not in opkinds.PRODUCT or not allowed:
            return call()
        added = 1 if name.startswith(("add", "baddbmm")) else 0
        return op(*args[:added], *map_tensors(args[added:], cut), **kwargs)

    return watching_ops(product)


def _bias_apart(
    name: str, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """A product without its bias, and the bias as it is added to that; None of what has none."""
    if name == "convolution" and args[2] is not None:
        x, weight, bias, *rest = args
        return op(x, weight, None, *rest), bias.view(-1, *(1,) * (x.dim() - 2))
    if name in ("addmm", "baddbmm"):
        bias, left, right = args
        return left.matmul(right) * kwargs.get("alpha", 1), bias * kwargs.get("beta", 1)
    return None


def _biases_apart() -> AbstractContextManager[Any]:
    """Products that are rounded before their bias is added, and once more after it.

    In a short format both lie on one grid, so that a whole channel is off the same way: Inductor does so on GPUs.
    """

    def product(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: Callable[[], Any]) -> Any:
        apart = _bias_apart(short_name(op), op, args, kwargs)
        return call() if apart is None else apart[0] + apart[1]

    return watching_ops(product)


def _sums_before_rounding() -> AbstractContextManager[Any]:
    """Reductions read values as they were before they were rounded to a short format; all else reads them rounded.

    A fused kernel does so: it sums what it has just computed, and writes it down, rounded, for the others. The mean of
    a batch and the values it is taken from are then not quite of one kind.
    """

    def step(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: Callable[[], Any]) -> Any:
        name = short_name(op)
        whole = decomposition_of(op) if name in opkinds.REDUCE and name not in SUMS else None
        if whole is not None:
            with watching_ops(step):
                value = whole(*args, **kwargs)
            if value is not NotImplemented:
                return value
        short = any(_before_rounding(t) is not t for t in tensors_in([list(args), dict(kwargs)]))
        if name.endswith("_") or not (short or name in opkinds.CONVERT):
            return call()
        value = call()
        with contextlib.suppress(
            RuntimeError, NotImplementedError
        ):  # what has no kernel for float32 reads rounded values
            if name in SUMS:
                fine = op(*map_tensors(args, _before_rounding), **kwargs)
                pairs = zip(value, fine) if isinstance(value, tuple) else [(value, fine)]
                found = tuple(new.to(old.dtype) for old, new in pairs)
                return found if isinstance(value, tuple) else found[0]
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                if (apart := _bias_apart(name, op, args, kwargs)) is not None:
                    fine = apart[0].float() + apart[1].float()
                    value = fine.to(value.dtype)
                elif name in opkinds.PRODUCT:
                    return value
                elif name in opkinds.CONVERT:
                    fine = _before_rounding(args[0]).float()
                elif is_view(op):
                    fine = op(*map_tensors(args, _before_rounding), **kwargs)
                elif value.dtype in SHORT:
                    fine = op(*map_tensors(args, _wide), **map_tensors(kwargs, _wide))
                else:
                    return value
                value.before_rounding = fine
        return value

    return watching_ops(step)


def _before_rounding(value: torch.Tensor) -> torch.Tensor:
    return getattr(value, "before_rounding", _wide(value))


def _wide(value: torch.Tensor) -> torch.Tensor:
    return value.float() if value.dtype in SHORT else value


def _a_step_away(inputs: Sequence[Any]) -> list[Any]:
    """Copies of inputs of which two numbers in three are a step up or down; memory and layout are as they were."""
    generator = torch.Generator("cpu").manual_seed(0)
    copies = clone_inputs(list(inputs))
    for value in tensors_in(copies):
        if value.dtype in (torch.float32, torch.float64) and value.layout == torch.strided:
            signs = torch.randint(-1, 2, value.shape, generator=generator, device="cpu").to(value.device)
            value.detach().mul_(1 + signs * torch.finfo(value.dtype).eps)
    return copies


def _in_other_layouts(inputs: Sequence[Any]) -> list[Any]:
    changed = list(inputs)
    for place in alone_in_memory(inputs):  # what shares memory must go on doing so
        value = inputs[place]
        if value.dim() == 4:
            last = torch.contiguous_format if not value.is_contiguous() else torch.channels_last
            changed[place] = value.detach().contiguous(memory_format=last).requires_grad_(value.requires_grad)
    return changed
