"""What a tensor is to torch: whether it has values, whose memory it lies on, and what its symbolic sizes know.

Of symbolic numbers only stored facts are read; none is compared or evaluated, so no guard is added to the user's trace.

Versions: alike in 2.11..2.15, but that 2.13 renamed `var_to_val` to `backed_var_to_val`; an unbacked hint is None or
raises.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from torchsleuth.script_runtime.symbolic_inputs import symbolic_number


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


def expression_of(number: Any) -> str:
    """`"2*s0"`; for a plain number its own digits.

    >>> expression_of(3)
    '3'
    """
    return str(number.node.expr) if _is_symbolic(number) else str(number)


def hint_of(number: Any) -> Any:
    """The example value behind a symbolic number; None where only running the program gives one."""
    if not _is_symbolic(number):
        return number
    known = number.node.constant
    if known is not None:
        return known
    try:
        hint = number.node.hint
    except Exception:
        return None
    return None if hint is None else number.node.pytype(hint)


def base_symbols(number: Any) -> Iterator[tuple[str, int | None, int | None, int | None]]:
    """(name, hint, lower, upper) of each symbol in the expression; None for an unknown hint or no bound."""
    if not _is_symbolic(number):
        return
    env = number.node.shape_env
    values = getattr(env, "backed_var_to_val", None) or env.var_to_val
    for symbol in sorted(number.node.expr.free_symbols, key=str):
        span = env.var_to_range.get(symbol)
        hint = values.get(symbol)
        lower, upper = (None, None) if span is None else (_finite(span.lower), _finite(span.upper))
        yield str(symbol), None if hint is None else int(hint), lower, upper


def _is_symbolic(number: object) -> bool:
    return isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool)


def _finite(bound: Any) -> int | None:
    # Bounds near the edge of int64 are how "no bound" is stored for sizes; newer ones are sympy infinities.
    if not getattr(bound, "is_Integer", isinstance(bound, int)):
        return None
    value = int(bound)
    return value if abs(value) < 2**62 else None


def number_of(expression: str, hints: Mapping[str, int]) -> int | None:
    """What a size's expression comes to for these numbers; None where a symbol in it has none.

    >>> number_of("2*s0 + 1", {"s0": 3})
    7
    """
    try:
        return int(symbolic_number(expression, dict(hints), None))
    except (ValueError, ArithmeticError):
        return None
