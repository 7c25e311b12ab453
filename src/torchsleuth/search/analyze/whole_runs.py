"""Whole calls of a model: what one returns and changes, by path, and where two of them differ."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchsleuth.torch_core.compare.compat.models import reduce_to_scalar_loss
from torchsleuth.torch_core.compare.divergence.distance import distance
from torchsleuth.torch_core.compare.reference.cloning import (
    Snapshot,
    changed,
    clone_inputs,
    map_tensors,
    restore,
    same_bits,
)
from torchsleuth.torch_core.compare.reference.rng import RngState, restore_rng
from torchsleuth.torch_core.compare.reference.trees import leaves


def ran(
    model: Callable[..., Any],
    named: dict[str, torch.Tensor],
    before: Snapshot,
    inputs: Sequence[Any],
    start: RngState,
    backward: bool,
) -> dict[str, Any]:
    """What a call returns and changes, by path; afterwards everything is as it was `before`.

    `named` are the model's tensors. What a call does not change is not copied: there the model's own tensors and the
    inputs are given. Used as `ran(model, named, snapshot([*named.values()]), [x], save_rng(), False)["outputs"]`.
    """
    gradients = {name: t.grad for name, t in named.items() if t.requires_grad}
    given = clone_inputs(list(inputs))
    restore_rng(start)
    try:
        for name in gradients:
            named[name].grad = None
        out = model(*given)
        if backward:
            reduce_to_scalar_loss(out).backward()
        found = dict(leaves(clone_inputs(detached(out))))
        for place, (old, new) in enumerate(zip(inputs, given)):
            same = isinstance(old, torch.Tensor) and same_bits(old, new)
            found[f"inputs[{place}]"] = old.detach() if same else _plain(new)
        written = {id(before.originals[place]) for place in changed(before)}
        for name, tensor in named.items():
            found[_own_name(name)] = _plain(tensor) if id(tensor) in written else tensor.detach()
        if backward:
            wanting = [(f"inputs[{p}].grad", v) for p, v in enumerate(given) if _wants_gradient(v)]
            wanting += [(f"{_own_name(name)}.grad", named[name]) for name in gradients]
            found |= {name: clone_inputs(value.grad) for name, value in wanting if value.grad is not None}
        return found
    finally:
        restore(before)
        for name, gradient in gradients.items():
            named[name].grad = gradient


def named_tensors(models: Sequence[Any]) -> dict[str, torch.Tensor]:
    """Parameters and buffers of those of the models that are modules: `named_tensors([torch.nn.Linear(2, 2)])`."""
    held: dict[int, torch.nn.Module] = {id(m): m for m in models if isinstance(m, torch.nn.Module)}
    return {name: t for m in held.values() for name, t in [*m.named_parameters(), *m.named_buffers()]}


def _wants_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf


def _own_name(name: str) -> str:
    """`torch.compile` of a module puts its own name in front of every other."""
    return name.removeprefix("_orig_mod.")


def _plain(value: Any) -> Any:
    return clone_inputs(value.detach()) if isinstance(value, torch.Tensor) else value


def differences(eager: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The paths at which two runs differ by more than the last bits.

    >>> differences({"outputs": torch.ones(2)}, {"outputs": torch.zeros(2)})
    ['outputs']
    """
    found = [path for path in eager if path not in other] + [path for path in other if path not in eager]
    for path in eager.keys() & other.keys():
        ours, theirs = eager[path], other[path]
        if isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor):
            alike = ours.shape == theirs.shape and ours.dtype == theirs.dtype
            if not alike or (not same_bits(ours, theirs) and distance(theirs, ours, None).far):
                found.append(path)
        elif type(ours) is not type(theirs) or not _equal(ours, theirs):
            found.append(path)
    return sorted(found)


def _equal(ours: Any, theirs: Any) -> bool:
    with contextlib.suppress(Exception):  # a user's own type may not know
        return bool(ours == theirs or ours != ours)
    return True


def detached(tree: Any) -> Any:
    """The tree with tensors that autograd knows nothing of: `detached([x])[0].requires_grad` is False."""
    return map_tensors(tree, torch.Tensor.detach)
