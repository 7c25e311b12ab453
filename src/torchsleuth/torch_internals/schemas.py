"""What an operator's schema says that a reducer needs: whether it writes into its arguments, and its defaults.

`OpOverload._schema` is a `FunctionSchema` in 2.11..2.15 alike; `Argument.has_default_value()` as well.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload


@dataclass(frozen=True)
class SchemaArgument:
    """One argument of an operator; `default` counts only where `has_default`."""

    name: str
    has_default: bool
    default: Any
    keyword_only: bool


def may_write(node: torch.fx.Node) -> bool:
    """Whether running the node can change the memory of its arguments; in doubt, True.

    >>> may_write(relu_node)
    False
    """
    target = node.target
    if node.op == "call_function" and isinstance(target, OpOverload):
        return bool(target._schema.is_mutable)
    if target is operator.getitem:
        return False
    if isinstance(target, HigherOrderOperator):
        return target.name() not in ("auto_functionalized", "auto_functionalized_v2")
    return node.op in ("call_function", "call_method", "call_module")


def schema_arguments(target: object) -> tuple[SchemaArgument, ...] | None:
    """The declared arguments of an operator overload, in order; None for anything else.

    >>> [a.name for a in schema_arguments(torch.ops.aten.softmax.int)]
    ['self', 'dim', 'dtype']
    """
    if not isinstance(target, OpOverload):
        return None
    return tuple(
        SchemaArgument(
            a.name,
            a.has_default_value(),
            a.default_value if a.has_default_value() else None,
            bool(a.kwarg_only),
        )
        for a in target._schema.arguments
    )


def short_name(target: object) -> str:
    """`relu` for `aten.relu.default`, `cond` for the higher-order operator, `linear` for a function.

    >>> short_name(torch.ops.aten.sum.dim_IntList)
    'sum'
    """
    if isinstance(target, OpOverload):
        return target._schema.name.rpartition("::")[2]
    if isinstance(target, HigherOrderOperator):
        return target.name()
    return target if isinstance(target, str) else str(getattr(target, "__name__", target))


def aten_name(target: object) -> str | None:
    """`sum` where the target is an overload of an aten operator, else None.

    >>> aten_name(torch.relu)
    """
    if isinstance(target, OpOverload) and target.namespace == "aten":
        return short_name(target)
    return None


def has_own_memory(value: torch.Tensor) -> bool:
    """Whether a tensor's memory can be read as it is: not sparse, and not wrapped by vmap, grad or the like.

    >>> has_own_memory(torch.ones(2))
    True
    """
    return value.layout is torch.strided and not torch._C._functorch.is_functorch_wrapped_tensor(value)


def nesting(node: torch.fx.Node) -> int:
    """1 where a node opens a level of torch.func (vmap, grad, jvp), -1 where it closes one, else 0.

    2.11..2.15: the functions are called `_vmap_increment_nesting`, `_grad_decrement_nesting` and so on.
    """
    name = str(getattr(node.target, "__name__", ""))
    return 1 if name.endswith("_increment_nesting") else -1 if name.endswith("_decrement_nesting") else 0


def load_compiler_operators() -> None:
    """Makes the operators that Inductor itself defines known to torch, as a graph after its passes may hold them."""
    import torch._inductor.inductor_prims  # noqa: F401


def operator_schemas(graph: torch.fx.GraphModule) -> list[str]:
    """The schemas of all operator overloads that a graph and its nested ones call.

    >>> operator_schemas(gm)
    ['aten::relu(Tensor self) -> Tensor']
    """
    parts = [part for part in graph.modules() if isinstance(part, torch.fx.GraphModule)]
    targets = [node.target for part in parts for node in part.graph.nodes]
    return list(dict.fromkeys(str(t._schema) for t in targets if isinstance(t, OpOverload)))


# A library takes its operators along when it goes.
_DECLARED: list[torch.library.Library] = []


def declare_operators(schemas: Iterable[str]) -> None:
    """Makes operators known by their schemas, without kernels; those that are known already stay as they are."""
    for schema in schemas:
        name, _, overload = schema.partition("(")[0].partition(".")
        space, _, operator_name = name.partition("::")
        packet = getattr(getattr(torch.ops, space), operator_name, None)
        if packet is None or (overload or "default") not in packet.overloads():
            library = torch.library.Library(space, "FRAGMENT")
            library.define(schema.partition("::")[2])
            _DECLARED.append(library)
