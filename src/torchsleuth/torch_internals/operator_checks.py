"""What an operator's schema and its fake kernel say about a call, before the real one is made.

Versions: `_SchemaInfo` (which knows that batch norm changes its statistics only while training, and the like) and
`FakeTensorMode` take part alike in 2.11..2.15.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchsleuth.torch_internals.modes import outside_all_modes

# A fake kernel that raises one of these says "it depends on the values" or "I cannot", which is no mismatch.
_NO_ANSWER = (
    "UnsupportedFakeTensorException",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "UnsupportedOperatorException",
    "UnsupportedMutationAliasingException",
    "GuardOnDataDependentSymNode",
    "PendingUnbackedSymbolNotFound",
)


@dataclass(frozen=True)
class Declared:
    """An operator's schema, bound to the arguments of one call."""

    text: str
    arguments: dict[str, Any]
    returns: int
    lists_may_share: tuple[bool, ...]
    _info: Any = field(repr=False)

    def mutates(self, argument: int) -> bool:
        return bool(self._info.is_mutable(_argument("input", argument)))

    def output_may_alias(self, output: int, argument: int) -> bool:
        return bool(self._info.may_contain_alias(_argument("output", output), _argument("input", argument)))

    def outputs_may_alias(self, one: int, other: int) -> bool:
        return bool(self._info.may_contain_alias(_argument("output", one), _argument("output", other)))


def declared(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Declared:
    """The schema of `op` for this call: `declared(torch.ops.aten.relu_.default, (x,), {}).mutates(0)` is True."""
    schema = op._schema
    bound: dict[str, Any] = {}
    for position, each in enumerate(schema.arguments):
        if position < len(args):
            bound[each.name] = args[position]
        elif each.name in kwargs:
            bound[each.name] = kwargs[each.name]
        else:
            bound[each.name] = each.default_value if each.has_default_value() else None
    info = torch._C._SchemaInfo(schema)
    info.add_argument_values({name: value for name, value in bound.items() if _tells(value)})
    shared = tuple(each.alias_info is not None for each in schema.returns)
    return Declared(str(schema), bound, len(schema.returns), shared, info)


@dataclass(frozen=True)
class FakeAnswer:
    """What the fake kernel returned, the fake inputs it was given, or the exception it raised."""

    outputs: Any = None
    inputs: Any = None
    error: Exception | None = None


def fake_answer(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> FakeAnswer | None:
    """Runs the fake kernel of `op` on fakes of these arguments; None where it has no answer to give.

    >>> fake_answer(torch.ops.aten.relu.default, (torch.ones(2),), {}).outputs.shape
    torch.Size([2])
    """
    fake_tensor = importlib.import_module("torch._subclasses.fake_tensor")
    symbolic = importlib.import_module("torch.fx.experimental.symbolic_shapes")

    def fake_of(value: Any) -> Any:
        return mode.from_tensor(value, static_shapes=True) if isinstance(value, torch.Tensor) else value

    with outside_all_modes(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mode = fake_tensor.FakeTensorMode(shape_env=symbolic.ShapeEnv())
        try:
            with mode:
                inputs = _mapped(fake_of, (tuple(args), kwargs))
                return FakeAnswer(op(*inputs[0], **inputs[1]), inputs)
        except Exception as error:
            return None if type(error).__name__ in _NO_ANSWER else FakeAnswer(error=error)


def storage_of(tensor: torch.Tensor) -> int | None:
    """A number that two tensors have in common where they share memory; None where a tensor has no storage."""
    if not torch._C._has_storage(tensor):
        return None
    return tensor.untyped_storage()._cdata


def _tells(value: Any) -> bool:
    """Whether a value can bear on what a schema means: tensors and switches can, devices and objects cannot."""
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(each, torch.Tensor) for each in value)
    return isinstance(value, (torch.Tensor, bool, int, float))


def _mapped(function: Any, tree: Any) -> Any:
    from torch.utils import _pytree

    return _pytree.tree_map(function, tree)


def _argument(kind: str, number: int) -> Any:
    kinds = torch._C._SchemaArgType
    which = kinds.input if kind == "input" else kinds.output
    return torch._C._SchemaArgument(which, number)
