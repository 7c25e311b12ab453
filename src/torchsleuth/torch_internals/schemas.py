"""What an operator's schema says: its arguments, what it aliases, and what it writes to.

`written_arguments` is the one rule for what a call writes: its schema, else torch's naming, in doubt everything.

Versions: `OpOverload._schema` is a `FunctionSchema` in 2.11..2.15, and `torch._C._SchemaInfo` knows what no schema
says: that batch and instance norm change their statistics while training.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from torchsleuth.torch_internals.operators import custom_operator_name, is_operator

# Python's operators that change their first operand.
IN_PLACE_OPERATORS = frozenset((
    "iadd", "isub", "imul", "itruediv", "ifloordiv", "ipow", "imatmul", "iand", "ior", "ixor", "imod", "ilshift",
    "irshift", "setitem",
))  # fmt: skip
_FUNCTIONALISED = ("auto_functionalized", "auto_functionalized_v2")
# Arguments that tell `_SchemaInfo` whether a normalisation updates its statistics.
_TRAINING_SWITCHES = ("training", "train", "use_input_stats")


@dataclass(frozen=True)
class SchemaArgument:
    """One argument of an operator; `default` counts only where `has_default`."""

    name: str
    has_default: bool
    default: Any


def schema_arguments(target: object) -> tuple[SchemaArgument, ...] | None:
    """The declared arguments of an operator overload, in order; None for anything else.

    >>> [a.name for a in schema_arguments(torch.ops.aten.softmax.int)]
    ['self', 'dim', 'dtype']
    """
    if not isinstance(target, OpOverload):
        return None
    declared = ((a, a.has_default_value()) for a in target._schema.arguments)
    return tuple(SchemaArgument(a.name, has, a.default_value if has else None) for a, has in declared)


def argument_of(node: torch.fx.Node, name: str) -> Any:
    """What a node gives an operator for the argument of that name, or its default; None for other nodes.

    Example: `argument_of(node, "dim")` of a softmax over the last dimension is -1.
    """
    for place, argument in enumerate(schema_arguments(node.target) or ()):
        if argument.name == name:
            given = node.args[place] if place < len(node.args) else argument.default
            return node.kwargs.get(name, given)
    return None


def result_names(target: object) -> tuple[str, ...]:
    """The names an operator's schema gives its results, empty where it names none.

    >>> result_names(torch.ops.aten.sort.default)
    ('values', 'indices')
    """
    if not isinstance(target, OpOverload):
        return ()
    return tuple(result.name or "" for result in target._schema.returns)


def may_write(node: torch.fx.Node) -> bool:
    """Whether running the node can change the memory of its arguments; in doubt, True.

    >>> may_write(node)
    False
    """
    return node.op == "call_module" or bool(written_arguments(node))


def written_arguments(node: torch.fx.Node) -> tuple[torch.fx.Node, ...]:
    """The arguments of a node, themselves nodes, whose memory running it may change; in doubt all of them.

    `x.add_(y)` writes `x`, `torch.add(x, y, out=z)` writes `z`, and a function that torch does not ship may write both.
    """
    target = node.target
    if node.op not in ("call_function", "call_method", "call_module"):
        return ()
    if isinstance(target, HigherOrderOperator):
        return tuple(node.all_input_nodes) if _nested_may_write(node, target) else ()
    if isinstance(target, OpOverload):
        return _nodes(_written_by_schema(target, node))
    if isinstance(target, OpOverloadPacket):  # any of its overloads may be the one that is called
        overloads = [getattr(target, name) for name in target.overloads()]
        return _nodes(value for each in overloads for value in _written_by_schema(each, node))
    if node.op == "call_module" or not is_torchs_own(target):
        return tuple(node.all_input_nodes)
    return _nodes(_written_by_style(target, node))


def _nested_may_write(node: torch.fx.Node, target: HigherOrderOperator) -> bool:
    """A higher-order operator writes what the graphs it is given write; one that is given none (Triton) may."""
    if target.name() in _FUNCTIONALISED:
        return False
    owner = node.graph.owning_module
    held = [a.target for a in node.all_input_nodes if a.op == "get_attr"] if owner is not None else []
    graphs = [g for g in (operator.attrgetter(str(name))(owner) for name in held) if hasattr(g, "graph")]
    return not graphs or any(may_write(each) for graph in graphs for each in graph.graph.nodes)


def is_torchs_own(target: object) -> bool:
    """Whether a call is one of torch's or Python's own, which does what its name says; methods are Tensor's.

    >>> is_torchs_own(torch.relu), is_torchs_own("relu"), is_torchs_own(lambda x: x)
    (True, True, False)
    """
    if isinstance(target, str):
        return True
    if is_operator(target):
        return custom_operator_name(target) is None
    # The methods of C's tensor class have no module.
    module = getattr(target, "__module__", None) or "torch"
    plain = inspect.isroutine(target) or inspect.isclass(target)
    return plain and module.partition(".")[0] in ("torch", "math", "operator", "_operator", "builtins")


def _written_by_style(target: Any, node: torch.fx.Node) -> Iterator[Any]:
    """A trailing underscore, `inplace=True` and `out=` say it; so does the operator of a function's name."""
    name = str(getattr(target, "__name__", target))
    behind = getattr(getattr(torch.ops.aten, name, None), "default", None)
    parameters = _parameters(target, behind)
    given = {**parameters, **_by_name(list(parameters), node)}
    yield given.get("out")
    if given.get("max_norm") is not None:  # an embedding that shortens the rows it looks up
        yield given.get("weight")
    in_place = name in IN_PLACE_OPERATORS or (name.endswith("_") and not name.endswith("__"))
    if in_place or given.get("inplace"):
        yield [*node.args, *node.kwargs.values()][0]
    elif behind is not None:
        yield from _written_by_schema(behind, node, given)


def _written_by_schema(
    op: OpOverload, node: torch.fx.Node, given: dict[str, Any] | None = None
) -> Iterator[Any]:
    names = [argument.name for argument in op._schema.arguments]
    given = _by_name(names, node) if given is None else given
    switches = {name: given[name] for name in _TRAINING_SWITCHES if isinstance(given.get(name), bool)}
    info = _schema_info(op, {name: value for name, value in switches.items() if name in names})
    return (given[name] for name in names if name in given and info.is_mutable(name))


def operator_schemas(graph: torch.fx.GraphModule) -> list[str]:
    """The schemas of all operator overloads that a graph and its nested ones call, or hand to a higher-order one.

    >>> operator_schemas(torch.fx.symbolic_trace(lambda x: torch.ops.aten.relu.default(x)))
    ['aten::relu(Tensor self) -> Tensor']
    """
    parts = [part for part in graph.modules() if isinstance(part, torch.fx.GraphModule)]
    named: list[Any] = []
    for node in (node for part in parts for node in part.graph.nodes):
        torch.fx.node.map_aggregate((node.target, node.args, node.kwargs), named.append)
    return list(dict.fromkeys(str(each._schema) for each in named if isinstance(each, OpOverload)))


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


def _parameters(target: Any, behind: OpOverload | None) -> dict[str, Any]:
    """The names of a function's parameters, with their defaults where Python knows them."""
    if inspect.isfunction(target):
        return {each.name: each.default for each in inspect.signature(target).parameters.values()}
    return {} if behind is None else {argument.name: None for argument in behind._schema.arguments}


def _by_name(names: Sequence[str], node: torch.fx.Node) -> dict[str, Any]:
    """The arguments of a call by name; positional ones without a known name by their number."""
    positional = {names[i] if i < len(names) else str(i): value for i, value in enumerate(node.args)}
    return {**positional, **node.kwargs}


def _nodes(values: Iterable[Any]) -> tuple[torch.fx.Node, ...]:
    found: list[torch.fx.Node] = []
    torch.fx.map_arg(list(values), found.append)
    return tuple(dict.fromkeys(found))


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
    bound = {each.name: each.default for each in schema_arguments(op) or ()}
    bound |= {**dict(zip(bound, args)), **kwargs}
    shared = tuple(each.alias_info is not None for each in schema.returns)
    info = _schema_info(op, {name: value for name, value in bound.items() if _tells(value)})
    return Declared(str(schema), bound, len(schema.returns), shared, info)


def _schema_info(op: Any, values: dict[str, Any]) -> Any:
    info = torch._C._SchemaInfo(op._schema)
    info.add_argument_values(values)
    return info


def _tells(value: Any) -> bool:
    """Whether a value can bear on what a schema means: tensors and switches can, devices and objects cannot."""
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(each, torch.Tensor) for each in value)
    return isinstance(value, (torch.Tensor, bool, int, float))


def _argument(kind: str, number: int) -> Any:
    kinds = torch._C._SchemaArgType
    which = kinds.input if kind == "input" else kinds.output
    return torch._C._SchemaArgument(which, number)


def written_inputs(graph: torch.fx.GraphModule) -> list[str]:
    """The names of the placeholders that a run of the graph may change, in their order.

    >>> written_inputs(torch.fx.symbolic_trace(lambda x, y: x.add_(y)))
    ['x']
    """
    return list(writers(graph))


def writers(graph: torch.fx.GraphModule) -> dict[str, list[str]]:
    """The placeholders that a run may change, in their order, each with the calls that write to it.

    >>> writers(torch.fx.symbolic_trace(lambda x, y: x[0].add_(y)))
    {'x': ['add_']}
    """
    found: dict[Any, list[str]] = {}
    for node in graph.graph.nodes:
        for value in written_arguments(node):
            found.setdefault(_origin(value), []).append(node.name)
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    return {node.name: found[node] for node in placeholders if node in found}


def _origin(value: Any) -> Any:
    """The node whose memory a chain of views ends at."""
    while isinstance(value, torch.fx.Node) and value.op != "placeholder" and value.args:
        value = value.args[0]
    return value
