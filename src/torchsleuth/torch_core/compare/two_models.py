"""Run a model forward and maybe backward, and compare two models by everything such a run produces.

The idea: the result of a run is outputs, gradients of parameters and inputs, mutated inputs and mutated
buffers - one tree with readable paths - so one `same` compares all of it.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchsleuth.torch_core.compare.reference.cloning import clone_inputs, same_bits, tensors_in
from torchsleuth.torch_core.compare.reference.float64 import cast_to_fp64
from torchsleuth.torch_core.compare.reference.rng import restore_rng, rng_kept
from torchsleuth.torch_core.compare.reference.trees import leaves
from torchsleuth.torch_core.compare.same import differences

log = logging.getLogger(__name__)

TOLERANCE = 1e-3
"""What the accuracy minifier of torch uses: loose enough that fixed-tolerance minification stays on the bug."""


class NotReducible(TypeError):
    """A model output no scalar loss can be made of."""


def reduce_to_scalar_loss(out: Any) -> Any:
    """One number that depends on every float in `out`, for a backward pass to start from.

    Example: `reduce_to_scalar_loss((x, {"y": y})).backward()`.
    """
    if isinstance(out, torch.Tensor):
        dense = out.to_dense() if out.layout != torch.strided and not out.is_nested else out
        if dense.is_nested:
            return reduce_to_scalar_loss(list(dense.unbind()))
        if dense.is_complex():
            dense = dense.abs()
        # Sum over count: unlike mean, it works on integers. An empty tensor contributes nothing.
        return dense.sum() / max(dense.numel(), 1)
    if isinstance(out, (int, float)) and not isinstance(out, bool):
        return float(out)
    if isinstance(out, (list, tuple)):
        return _average([reduce_to_scalar_loss(item) for item in out if _counts(item)])
    logits = getattr(out, "logits", None)
    if isinstance(logits, torch.Tensor):
        return reduce_to_scalar_loss(logits)
    if isinstance(out, Mapping):
        return _average([reduce_to_scalar_loss(item) for item in out.values() if _counts(item)])
    mean = getattr(out, "mean", None)
    if isinstance(mean, torch.Tensor):
        return mean.sum()
    raise NotReducible(
        f"cannot reduce an output of type {type(out).__name__} to a scalar loss: it is neither a tensor, "
        "a list, tuple or dict of tensors, nor has it logits or a mean; return tensors, or compare with only_fwd=True"
    )


def run_fwd_maybe_bwd(
    gm: Any, args: Sequence[Any], only_fwd: bool = False, disable_clone: bool = False
) -> Any:
    """Run a copy of the model on copies of the inputs; with gradients wanted, run backward as well.

    Returns the outputs alone with `only_fwd`, otherwise a dict with outputs, gradients, mutated inputs
    and mutated buffers. Example: `run_fwd_maybe_bwd(model, [x])["input_grads"]`.
    """
    gm = copy.deepcopy(gm) if isinstance(gm, torch.nn.Module) else gm
    if not disable_clone:
        args = clone_inputs(list(args))
    before = [] if only_fwd else [t.detach().clone() for t in tensors_in(args)]
    buffers_before = {} if only_fwd else {name: b.clone() for name, b in _named(gm, "named_buffers")}
    if hasattr(gm, "zero_grad"):
        gm.zero_grad(True)
    for tensor in tensors_in(args):
        if tensor.is_leaf and tensor.requires_grad:
            tensor.grad = None
    out = gm(list(args)) if getattr(gm, "_boxed_call", False) else gm(*args)
    if only_fwd:
        return out
    if any(t.requires_grad for _, t in leaves(out) if isinstance(t, torch.Tensor)):
        loss = reduce_to_scalar_loss(out)
        loss.backward()
    return _collect(gm, out, args, before, buffers_before)


def same_two_models(
    gm: Any,
    opt_gm: Any,
    example_inputs: Sequence[Any],
    only_fwd: bool = False,
    *,
    require_fp64: bool = False,
    ignore_non_fp: bool = False,
) -> bool:
    """Whether an optimised model gives what the model gives, on outputs, gradients and mutations.

    Both runs draw the same random numbers. An exception in `opt_gm` is another problem than a wrong
    result: it is logged and the answer is True. Example: `same_two_models(m, torch.compile(m), [x])`.
    """
    with rng_kept() as start:
        ref = run_fwd_maybe_bwd(gm, example_inputs, only_fwd)
        restore_rng(start)
        fp64_ref = _fp64_reference(gm, example_inputs, only_fwd, require_fp64)
        restore_rng(start)
        try:
            res = run_fwd_maybe_bwd(opt_gm, example_inputs, only_fwd)
        except Exception:
            log.exception("the optimised model raised; that is a different problem than a wrong result")
            return True
    rules: dict[str, Any] = {"tol": TOLERANCE, "equal_nan": True, "ignore_non_fp": ignore_non_fp}
    if only_fwd:
        found = differences(ref, res, fp64_ref, **rules)
    else:
        found = [
            d
            for part in ref
            for d in differences(ref[part], res[part], (fp64_ref or {}).get(part), part, **rules)
        ]
    for difference in found:
        log.error("%s", difference)
    return not found


def _fp64_reference(gm: Any, inputs: Sequence[Any], only_fwd: bool, required: bool) -> Any:
    try:
        model, wide_inputs = cast_to_fp64(gm, inputs)
        return run_fwd_maybe_bwd(model, wide_inputs, only_fwd, disable_clone=True)
    except Exception as error:
        if required:
            raise RuntimeError(
                f"no float64 reference could be computed ({type(error).__name__}: {error}); "
                "call with require_fp64=False to compare without it"
            ) from error
        log.warning("no float64 reference could be computed: %s", error)
        return None


def _named(gm: Any, method: str) -> list[tuple[str, torch.Tensor]]:
    found = list(getattr(gm, method)()) if hasattr(gm, method) else []
    # torch.compile and Float64Model wrap the module; their prefixes are not part of a parameter's name.
    return [(name.removeprefix("_orig_mod.").removeprefix("wide."), tensor) for name, tensor in found]


def _collect(
    gm: Any,
    out: Any,
    args: Sequence[Any],
    before: list[torch.Tensor],
    buffers_before: dict[str, torch.Tensor],
) -> dict[str, Any]:
    inputs = tensors_in(args)
    buffers = dict(_named(gm, "named_buffers"))
    return {
        "outputs": out,
        "param_grads": {name: p.grad for name, p in _named(gm, "named_parameters") if p.grad is not None},
        "input_grads": [t.grad if t.is_leaf and t.requires_grad else None for t in inputs],
        "mutated_inputs": {
            f"input {i}": t.detach() for i, t in enumerate(inputs) if not same_bits(t, before[i])
        },
        "mutated_buffers": {
            name: b.detach() for name, b in buffers.items() if not same_bits(b, buffers_before.get(name, b))
        },
    }


def _counts(item: Any) -> bool:
    return item is not None and not isinstance(item, (bool, str, torch.Size))


def _average(losses: list[Any]) -> Any:
    return sum(losses) / len(losses) if losses else 0.0
