"""What a tensor is to torch: whether it has values, and whose memory it lies on.

Versions: all of it is alike in 2.11..2.15.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch._subclasses.fake_tensor import FakeTensor


def is_fake(value: object) -> bool:
    """Whether the value is a fake tensor of a trace: it has a shape but no data.

    >>> is_fake(torch.ones(2))
    False
    """
    return isinstance(value, FakeTensor)


def has_no_values(value: torch.Tensor) -> bool:
    """Whether a tensor has no values of its own (fake or functional tensors of a trace)."""
    return is_fake(value) or torch._is_functional_tensor(value)


def has_own_memory(value: torch.Tensor) -> bool:
    """Whether a tensor's memory can be read as it is: not sparse or lazy, and not wrapped by vmap, grad or the like.

    >>> has_own_memory(torch.ones(2))
    True
    """
    return form_of(value) == "strided" and not torch._C._functorch.is_functorch_wrapped_tensor(value)


def unwrapped(value: torch.Tensor) -> torch.Tensor:
    """The tensor below what vmap, grad and the like wrap it in, which has memory and numbers to be read.

    >>> unwrapped(torch.ones(2))
    tensor([1., 1.])
    """
    while torch._C._functorch.is_functorch_wrapped_tensor(value):
        value = torch._C._functorch.get_unwrapped(value)
    return value


@contextlib.contextmanager
def transforms_ended() -> Iterator[None]:
    """Ends the transforms of torch.func that are begun inside and left by an error: a graph that Dynamo captured of a
    vmap begins and ends it in nodes of its own, and what is begun and not ended breaks whatever runs next.

    >>> with transforms_ended():
    ...     pass
    """
    functorch = torch._C._functorch
    depth = functorch.get_dynamic_layer_stack_depth()
    try:
        yield
    finally:
        if functorch.get_dynamic_layer_stack_depth() > depth:
            functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)


def detached_leaf(value: torch.Tensor) -> torch.Tensor:
    """The tensor without its history, differentiable as before; itself inside a transform of torch.func, which allows
    no new leaves.

    >>> detached_leaf(torch.ones(2, requires_grad=True) * 2).is_leaf
    True
    """
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return value
    return value.detach().requires_grad_(value.requires_grad)


def with_memory(value: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or zeros of its form where it is one of those that stand for zeros and have no memory.

    >>> with_memory(torch._efficientzerotensor((2,)))
    tensor([0., 0.])
    """
    if not value._is_zerotensor():
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return made.zero_().requires_grad_(value.requires_grad)


def form_of(tensor: torch.Tensor) -> str:
    """How a tensor keeps its values: "strided", lazily as "conj" or "neg" of its memory, without memory as "zero" or
    "mkldnn"; else by the name of its layout, or "quantised" or "nested".

    >>> form_of(torch.ones(2)), form_of(torch.ones(2, dtype=torch.complex64).conj())
    ('strided', 'conj')
    """
    if tensor.is_nested or tensor.is_quantized:
        return "nested" if tensor.is_nested else "quantised"
    if tensor.layout is not torch.strided:
        return str(tensor.layout).removeprefix("torch.").removeprefix("_")
    lazy = [name for name, is_so in (("conj", tensor.is_conj()), ("neg", tensor.is_neg())) if is_so]
    return "zero" if tensor._is_zerotensor() else " ".join(lazy) or "strided"


def values_in_memory(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The memory from which a tensor can be made again, a dense copy of it where it has none; None of a ZeroTensor.

    >>> values_in_memory(torch.ones(2).to_mkldnn()).nbytes()
    8
    """
    form = form_of(tensor)
    if form == "zero":
        return None
    return (tensor.detach().to_dense() if form == "mkldnn" else tensor).untyped_storage()


def values_nbytes(tensor: torch.Tensor) -> int:
    """How many bytes `values_in_memory` would have, without a copy."""
    form = form_of(tensor)
    if form == "zero":
        return 0
    return tensor.numel() * tensor.element_size() if form == "mkldnn" else tensor.untyped_storage().nbytes()


def storage_of(tensor: torch.Tensor) -> int | None:
    """A number that two tensors have in common where they share memory; None where a tensor has no storage."""
    if not torch._C._has_storage(tensor):
        return None
    return tensor.untyped_storage()._cdata
