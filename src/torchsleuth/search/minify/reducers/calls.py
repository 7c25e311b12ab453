"""Fewer and plainer calls, by what each reads and gives.

A call gives way to an operand, an earlier call of its operator, a plain call, or the graph that it holds; views,
clones, casts and steps between two that matter go by the first. Two inputs that look alike become one, results that
something inside reads as well are not returned, and arguments become as plain as they can be.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from torchsleuth.search.minify.contract import Edit, State
from torchsleuth.search.minify.reducers.edits import calls, edited, node_of, tidied
from torchsleuth.search.minify.states import checked, shapes_of
from torchsleuth.torch_core.tensors import TensorSpec
from torchsleuth.torch_internals.operators import is_operator
from torchsleuth.torch_internals.schemas import schema_arguments


def bypass(state: State) -> Iterator[Edit]:
    """One edit per call and operand: whoever reads the call reads the operand instead, or the call's first twin."""
    first: dict[object, torch.fx.Node] = {}
    for node in calls(state):
        first.setdefault(node.target, node)
    for node in reversed(calls(state)):
        if any(user.op != "output" for user in node.users):
            # Of several results only those of a twin: in a graph of operators nothing else is taken apart by getitem.
            apart = state.settings.level == "aot" and any(u.target is operator.getitem for u in node.users)
            for source in dict.fromkeys([*([] if apart else node.all_input_nodes), first[node.target]]):
                if source.op != "get_attr" and source is not node:
                    yield Edit(
                        f"{source.name} in place of {node.name}",
                        _bypassed,
                        (node.name, source.name),
                    )


def _bypassed(state: State, name: str, operand: str) -> State | None:
    if node_of(state.graph.graph, name) is None or node_of(state.graph.graph, operand) is None:
        return None

    def change(graph: torch.fx.Graph) -> None:
        node, source = node_of(graph, name), node_of(graph, operand)
        if node is not None and source is not None:
            node.replace_all_uses_with(source)

    candidate = edited(state, change)
    # A graph that only hands inputs through holds nothing that could be compiled wrongly.
    return checked(candidate) if calls(candidate) else None


def plainer_calls(state: State) -> Iterator[Edit]:
    """One edit per call and operand of its form: the call negates that operand and reads nothing else."""
    found = calls(state)
    if len(found) < 2:  # a call by itself is the one that fails
        return
    forms = shapes_of(state).forms
    for node in reversed(found):
        for source in dict.fromkeys(node.all_input_nodes):
            if (
                source.op != "get_attr"
                and source.name in forms
                and forms[source.name] == forms.get(node.name)
            ):
                yield Edit(f"a plain call in place of {node.name}", _plainly, (node.name, source.name))


def _plainly(state: State, name: str, operand: str) -> State | None:
    if node_of(state.graph.graph, name) is None or node_of(state.graph.graph, operand) is None:
        return None
    operators = all(is_operator(node.target) for node in calls(state))

    def change(graph: torch.fx.Graph) -> None:
        node, source = node_of(graph, name), node_of(graph, operand)
        assert node is not None and source is not None
        with graph.inserting_before(node):
            plain = graph.call_function(torch.ops.aten.neg.default if operators else torch.neg, (source,))
        plain.meta = dict(node.meta)
        node.replace_all_uses_with(plain)

    return checked(edited(state, change))


def inline_nested(state: State) -> Iterator[Edit]:
    """One edit per nested graph: its nodes in place of the call."""
    for node in calls(state):
        for source in node.all_input_nodes:
            if _nested(state, source) is not None:
                yield Edit(
                    f"{source.target} in place of {node.name}",
                    _inlined,
                    (node.name, source.name),
                )


def _nested(state: State, source: torch.fx.Node) -> torch.fx.GraphModule | None:
    held = getattr(state.graph, str(source.target), None) if source.op == "get_attr" else None
    return held if isinstance(held, torch.fx.GraphModule) else None


def _inlined(state: State, name: str, attribute: str) -> State | None:
    node, source = node_of(state.graph.graph, name), node_of(state.graph.graph, attribute)
    body = None if node is None or source is None else _nested(state, source)
    if node is None or body is None or any(isinstance(c, torch.fx.GraphModule) for c in body.children()):
        return None
    wanted = len(body.graph.find_nodes(op="placeholder"))
    given = [n for n in _operands((node.args, node.kwargs)) if n.op != "get_attr"]
    if len(given) < wanted or any(n.op == "get_attr" for n in body.graph.nodes):
        return None
    names = [
        n.name for n in given[len(given) - wanted :]
    ]  # what steers the operator comes before its operands

    def change(graph: torch.fx.Graph) -> None:
        call = node_of(graph, name)
        assert call is not None
        inside = dict(zip(body.graph.find_nodes(op="placeholder"), (node_of(graph, n) for n in names)))
        with graph.inserting_before(call):
            results = graph.graph_copy(body.graph, inside)
        _replace(graph, call, results)

    return checked(edited(state, change))


def _operands(value: Any) -> list[torch.fx.Node]:
    found: list[torch.fx.Node] = []
    torch.fx.map_arg(value, lambda n: found.append(n) or n)  # type: ignore[func-returns-value]
    return found


def _replace(graph: torch.fx.Graph, call: torch.fx.Node, results: Any) -> None:
    if not isinstance(results, (list, tuple)):
        call.replace_all_uses_with(results)
        return
    for user in list(call.users):
        if user.target is operator.getitem and isinstance(user.args[1], int):
            if isinstance(results[user.args[1]], torch.fx.Node):
                user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
    if call.users and len(results) == 1:
        call.replace_all_uses_with(results[0])
    graph.erase_node(call)


def merge_inputs(state: State) -> Iterator[Edit]:
    """Edits that read an earlier input of the same form instead of a later one, or drop what nothing reads."""
    used = {n.name for n in state.graph.graph.nodes if n.op == "placeholder" and n.users}
    if len(used) < len(state.inputs):
        yield Edit("drop unused inputs", _used)
    forms: dict[object, str] = {}
    for given in state.inputs:
        if isinstance(given.spec, TensorSpec) and given.name in used:
            form = replace(given.spec, storage=None, storage_nbytes=0, same_as=None, alias_of=None)
            first = forms.setdefault(form, given.name)
            if first != given.name:
                yield Edit(f"{given.name} is {first}", _merged, (first, given.name))


def _used(state: State) -> State:
    return tidied(state, copy.deepcopy(state.graph))


def _merged(state: State, first: str, second: str) -> State | None:
    names = {i.name for i in state.inputs}
    if first not in names or second not in names:
        return None

    def change(graph: torch.fx.Graph) -> None:
        one, other = node_of(graph, first), node_of(graph, second)
        if one is not None and other is not None:
            other.replace_all_uses_with(one)

    return edited(state, change)


def drop_outputs(state: State) -> Iterator[Edit]:
    """One edit per output: return all but this one."""
    outputs = state.graph.graph.output_node().args[0]
    if not isinstance(outputs, (list, tuple)) or len(outputs) < 2:
        return
    for node in dict.fromkeys(o for o in outputs if isinstance(o, torch.fx.Node)):
        yield Edit(f"do not return {node.name}", _without, (node.name,))


def _without(state: State, name: str) -> State | None:
    outputs = state.graph.graph.output_node().args[0]
    kept = [o for o in outputs if getattr(o, "name", None) != name]
    if not kept or len(kept) == len(outputs):
        return None

    def change(graph: torch.fx.Graph) -> None:
        output = graph.output_node()
        output.args = (tuple(o for o in output.args[0] if getattr(o, "name", None) != name),)

    return edited(state, change)


def plainer_arguments(state: State) -> Iterator[Edit]:
    """Edits that leave an argument to its default, or put a plainer literal in its place."""
    for node in calls(state):
        schema = schema_arguments(node.target)
        for key in node.kwargs:
            if schema is None or any(a.name == key and a.has_default for a in schema):
                yield Edit(f"{node.name} without {key}", _without_keyword, (node.name, key))
        last = len(node.args) - 1
        if schema is not None and 0 <= last < len(schema) and schema[last].has_default:
            yield Edit(f"{node.name} without its last argument", _without_last, (node.name,))
        for place, value in enumerate(node.args):
            for plain in _plainer_values(value):
                yield Edit(
                    f"argument {place} of {node.name} to {plain!r}",
                    _with_argument,
                    (node.name, place, plain),
                )


def _plainer_values(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [False] if value else []
    if isinstance(value, float):
        return [v for v in (0.0, 1.0) if v != value]
    if isinstance(value, (list, tuple)) and value and all(isinstance(v, bool) for v in value):
        return (
            [] if not any(value) else [[i == k for i in range(len(value))] for k, v in enumerate(value) if v]
        )
    if (
        isinstance(value, (list, tuple))
        and len(value) > 1
        and not any(isinstance(v, torch.fx.Node) for v in value)
    ):
        same = [[plain] * len(value) for plain in (0, 1)]
        return [v for v in same if v != list(value)] if all(isinstance(v, int) for v in value) else []
    if isinstance(value, (list, tuple)) and len(value) > 1:
        return [list(value[:1])]
    return []


def _without_keyword(state: State, name: str, key: str) -> State | None:
    node = node_of(state.graph.graph, name)
    if node is None or key not in node.kwargs:
        return None
    kept = {k: v for k, v in node.kwargs.items() if k != key}
    return _with_arguments(state, name, node.args, kept)


def _without_last(state: State, name: str) -> State | None:
    node = node_of(state.graph.graph, name)
    schema = None if node is None else schema_arguments(node.target)
    if node is None or schema is None or not node.args or not schema[len(node.args) - 1].has_default:
        return None
    return _with_arguments(state, name, node.args[:-1], dict(node.kwargs))


def _with_argument(state: State, name: str, place: int, value: Any) -> State | None:
    node = node_of(state.graph.graph, name)
    if node is None or place >= len(node.args) or node.args[place] == value:
        return None
    if isinstance(value, list) and any(isinstance(v, torch.fx.Node) for v in value):
        names = [getattr(v, "name", v) for v in value]
        value = [v for v in node.args[place] if getattr(v, "name", v) in names]
    return _with_arguments(
        state, name, (*node.args[:place], value, *node.args[place + 1 :]), dict(node.kwargs)
    )


def _with_arguments(state: State, name: str, args: tuple, kwargs: dict) -> State | None:
    def change(graph: torch.fx.Graph) -> None:
        node = node_of(graph, name)
        here = {n.name: n for n in graph.nodes}
        if node is not None:
            node.args = torch.fx.map_arg(args, lambda n: here[n.name])
            node.kwargs = torch.fx.map_arg(kwargs, lambda n: here[n.name])

    return checked(edited(state, change))
