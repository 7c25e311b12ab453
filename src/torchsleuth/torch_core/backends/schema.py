"""Did a real operator call change or alias anything that its schema does not declare?

Copies of the arguments are taken before the call and compared bit by bit after it, so that a change of one ulp, or
of a NaN's bits, is a change. Two tensors alias where they share storage: that is what a compiler goes by.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchsleuth.torch_core.backends.wrapped_errors import Difference
from torchsleuth.torch_internals.modes import outside_all_modes
from torchsleuth.torch_internals.schemas import Declared, declared
from torchsleuth.torch_internals.tensors import storage_of

# torch's own operators that return (a part of) their input by design and say so in their name or documentation.
_ALIAS_BY_DESIGN = frozenset(
    f"aten::{name}"
    for name in (
        "_unsafe_view",
        "unsafe_split",
        "unsafe_chunk",
        "unsafe_split_with_sizes",
        "lift",
        "lift_fresh",
    )
)


@dataclass(frozen=True)
class Before:
    """The arguments of a call as they were: per argument, each tensor with its bits, shape, strides and storage."""

    schema: Declared
    name: str
    tensors: tuple[tuple[tuple[torch.Tensor, Any], ...], ...]


def before_call(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Before:
    """Notes what `op` is about to be called with: `after_call(before_call(op, args, {}), op(*args))`."""
    schema = declared(op, args, kwargs)
    with outside_all_modes(), torch.no_grad():
        tensors = tuple(
            tuple((tensor, _state(tensor)) for tensor in tensors_in(value))
            for value in schema.arguments.values()
        )
    return Before(schema, schema.text.partition("(")[0].partition(".")[0], tensors)


def after_call(before: Before, result: Any) -> Iterator[Difference]:
    """Every undeclared change and alias of the call that gave `result`."""
    returns = result if isinstance(result, tuple) and before.schema.returns != 1 else (result,)
    outputs = [tensors_in(each) for each in returns]
    with outside_all_modes(), torch.no_grad():
        yield from _mutations(before)
        if before.name not in _ALIAS_BY_DESIGN:
            yield from _aliases_of_inputs(before, outputs)
            yield from _aliases_of_outputs(before, outputs)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors of an argument or a result, in order: `tensors_in([x, None, (y,)])` is `[x, y]`."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for each in value for tensor in tensors_in(each)]
    return []


def _mutations(before: Before) -> Iterator[Difference]:
    names = list(before.schema.arguments)
    mutable = {i for i in range(len(names)) if before.tensors[i] and before.schema.mutates(i)}
    # An undeclared argument that shares memory with a declared one changes with it, rightly.
    excused = {storage_of(tensor) for i in mutable for tensor, _ in before.tensors[i]}
    for i, name in enumerate(names):
        if i in mutable:
            continue
        for tensor, state in before.tensors[i]:
            if storage_of(tensor) not in excused and _differs(state, _state(tensor)):
                yield Difference(
                    "mutation",
                    f"argument {name!r}",
                    "it stays as it is",
                    "another value",
                    f"declare the mutation (mutates_args={{{name!r}}}, or Tensor(a!) {name} in the schema) "
                    "or work on a clone",
                )


def _aliases_of_inputs(before: Before, outputs: list[list[torch.Tensor]]) -> Iterator[Difference]:
    for (j, output), (i, name) in itertools.product(enumerate(outputs), enumerate(before.schema.arguments)):
        inputs = [tensor for tensor, _ in before.tensors[i]]
        if not _share(output, inputs):
            continue
        if not before.schema.output_may_alias(j, i):
            yield _alias(f"output {j}", f"memory shared with argument {name!r}")
        elif any(out is given for out in output for given in inputs) and not before.schema.mutates(i):
            yield _alias(f"output {j}", f"argument {name!r} itself instead of a view")


def _aliases_of_outputs(before: Before, outputs: list[list[torch.Tensor]]) -> Iterator[Difference]:
    for one, other in itertools.combinations(range(len(outputs)), 2):
        if _share(outputs[one], outputs[other]) and not before.schema.outputs_may_alias(one, other):
            yield _alias(f"output {one}", f"memory shared with output {other}")
    for j, output in enumerate(outputs):
        storages = [storage_of(tensor) for tensor in output]
        if len(set(storages)) < len(storages) and not before.schema.lists_may_share[j]:
            yield _alias(f"output {j}", "a list whose tensors share memory")


def _alias(what: str, did: str) -> Difference:
    return Difference(
        "aliasing",
        what,
        "memory of its own",
        did,
        "return a clone, or declare the alias, Tensor(a), in the schema",
    )


def _share(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    storages = {storage_of(tensor) for tensor in some} - {None}
    return any(storage_of(tensor) in storages for tensor in others)


def _state(tensor: torch.Tensor) -> Any:
    """Bits, shape, strides and storage; None for tensors without plain memory, which are not looked at."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        return None
    if tensor.is_meta:
        return None
    plain = tensor.int_repr() if tensor.is_quantized else tensor.detach()
    bits = plain.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return bits.reshape(-1).view(torch.uint8), tensor.shape, tensor.stride(), storage_of(tensor)


def _differs(before: Any, after: Any) -> bool:
    if before is None or after is None:
        return False
    return before[1:] != after[1:] or not torch.equal(before[0], after[0])
