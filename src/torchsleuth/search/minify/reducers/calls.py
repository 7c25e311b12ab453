"""Fewer and plainer calls, by what each reads and gives.

A call gives way to an operand, an earlier call of its operator, a plain call, or the graph that it holds; views,
clones, casts and steps between two that matter go by the first. Two inputs that look alike become one, results that
something inside reads as well are not returned, and arguments become as plain as they can be.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from torchsleuth.search.minify.contract import Edit, State
from torchsleuth.search.minify.reducers.edits import calls, edited, node_of
from torchsleuth.search.minify.states import checked, shapes_of
from torchsleuth.torch_internals.operators import is_operator
from torchsleuth.torch_internals.schemas import schema_arguments


def bypass(state: State) -> Iterator[Edit]:
    """One edit per call and operand: whoever reads the call reads the operand, or the first call of its operator.

    A failure that needs several results of one operator, as of a concatenation of products, is often content with one
    of them several times.
    """
    first: dict[object, torch.fx.Node] = {}
    for node in calls(state):
        first.setdefault(node.target, node)
    for node in reversed(calls(state)):
        if any(user.op != "output" for user in node.users):
            # Of several results only those of such a call: in a graph of operators getitem takes nothing else apart.
            apart = state.settings.level == "aot" and any(u.target is operator.getitem for u in node.users)
            for source in dict.fromkeys([*([] if apart else node.all_input_nodes), first[node.target]]):
                if source.op != "get_attr" and source is not node:
                    yield Edit(f"{source.name} in place of {node.name}", _bypassed, (node.name, source.name))


def _bypassed(state: State, name: str, operand: str) -> State | None:
    candidate = edited(state, lambda graph, node, source: node.replace_all_uses_with(source), name, operand)
    # A graph that only hands inputs through holds nothing that could be compiled wrongly.
    return checked(candidate) if candidate is not None and calls(candidate) else None


def plainer_calls(state: State) -> Iterator[Edit]:
    """One edit per call and operand of its form: the call negates that operand and reads nothing else.

    A failure that needs some call there, but not that one, is easier to read.
    """
    found = calls(state)
    if len(found) < 2:  # a call by itself is the one that fails
        return
    forms = shapes_of(state).forms
    for node in reversed(found):
        for source in dict.fromkeys(node.all_input_nodes):
            alike = source.name in forms and forms[source.name] == forms.get(node.name)
            if alike and source.op != "get_attr":
                yield Edit(f"a plain call in place of {node.name}", _negated, (node.name, source.name))


def _negated(state: State, name: str, operand: str) -> State | None:
    operators = all(is_operator(node.target) for node in calls(state))

    def change(graph: torch.fx.Graph, node: torch.fx.Node, source: torch.fx.Node) -> None:
        with graph.inserting_before(node):
            plain = graph.call_function(torch.ops.aten.neg.default if operators else torch.neg, (source,))
        plain.meta = dict(node.meta)
        node.replace_all_uses_with(plain)

    return checked(edited(state, change, name, operand))


# -- nested graphs


def inline_nested(state: State) -> Iterator[Edit]:
    """One edit per nested graph: its nodes in place of the call; a branch for its `cond`, a body for its wrapper."""
    for node in calls(state):
        for source in node.all_input_nodes:
            if _nested(state, source) is not None:
                yield Edit(f"{source.target} in place of {node.name}", _inlined, (node.name, source.name))


def _nested(state: State, source: torch.fx.Node | None) -> torch.fx.GraphModule | None:
    if source is None or source.op != "get_attr":
        return None
    held = getattr(state.graph, str(source.target), None)
    return held if isinstance(held, torch.fx.GraphModule) else None


def _inlined(state: State, name: str, attribute: str) -> State | None:
    body = _nested(state, node_of(state.graph.graph, attribute))
    if body is None or any(isinstance(c, torch.fx.GraphModule) for c in body.children()):
        return None
    inputs = body.graph.find_nodes(op="placeholder")

    def change(graph: torch.fx.Graph, call: torch.fx.Node) -> bool:
        given: list[torch.fx.Node] = []
        torch.fx.map_arg((call.args, call.kwargs), lambda n: given.append(n) or n)  # type: ignore[func-returns-value]
        given = [n for n in given if n.op != "get_attr"]
        if len(given) < len(inputs) or any(n.op == "get_attr" for n in body.graph.nodes):
            return False
        # What steers the operator comes before its operands.
        with graph.inserting_before(call):
            results = graph.graph_copy(body.graph, dict(zip(inputs, given[len(given) - len(inputs) :])))
        _replace(graph, call, results)
        return True

    return checked(edited(state, change, name))


def _replace(graph: torch.fx.Graph, call: torch.fx.Node, results: object) -> None:
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


# -- inputs and outputs


def merge_inputs(state: State) -> Iterator[Edit]:
    """Edits that read an earlier input of the same form instead of a later one, or drop what nothing reads."""
    used = {n.name for n in state.graph.graph.nodes if n.op == "placeholder" and n.users}
    if len(used) < len(state.inputs):
        yield Edit("drop unused inputs", edited, (lambda graph: None,))
    forms: dict[object, str] = {}
    for given, spec in state.tensors:
        if given.name in used:
            form = replace(spec, storage=None, storage_nbytes=0, same_as=None, alias_of=None)
            first = forms.setdefault(form, given.name)
            if first != given.name:
                yield Edit(f"{given.name} is {first}", edited, (_read_instead, first, given.name))


def _read_instead(graph: torch.fx.Graph, one: torch.fx.Node, other: torch.fx.Node) -> None:
    other.replace_all_uses_with(one)


def drop_outputs(state: State) -> Iterator[Edit]:
    """One edit per output: return all but this one, which something inside reads as well."""
    outputs = state.graph.graph.output_node().args[0]
    if not isinstance(outputs, (list, tuple)) or len(outputs) < 2:
        return
    for node in dict.fromkeys(o for o in outputs if isinstance(o, torch.fx.Node)):
        yield Edit(f"do not return {node.name}", edited, (_not_returned, node.name))


def _not_returned(graph: torch.fx.Graph, node: torch.fx.Node) -> bool:
    output = graph.output_node()
    kept = tuple(each for each in output.args[0] if each is not node)
    if not kept or len(kept) == len(output.args[0]):
        return False
    output.args = (kept,)
    return True


# -- arguments


def plainer_arguments(state: State) -> Iterator[Edit]:
    """Edits that leave an argument to its default, or put a plainer literal in its place."""
    for node in calls(state):
        schema = schema_arguments(node.target)
        # Each keyword of a launch of a Triton kernel is needed: which kernel, its grid, what it is given.
        for key in () if "kernel_idx" in node.kwargs else node.kwargs:
            if schema is None or any(a.name == key and a.has_default for a in schema):
                yield Edit(f"{node.name} without {key}", _without_keyword, (node.name, key))
        last = len(node.args) - 1
        if schema is not None and 0 <= last < len(schema) and schema[last].has_default:
            yield Edit(f"{node.name} without its last argument", _without_last, (node.name,))
        for place, value in enumerate(node.args):
            for plain in _plainer_values(value):
                yield Edit(
                    f"argument {place} of {node.name} to {plain!r}", _with_argument, (node.name, place, plain)
                )


def _plainer_values(value: object) -> list[object]:
    if isinstance(value, bool):
        return [False] if value else []
    if isinstance(value, float):
        return [v for v in (0.0, 1.0) if v != value]
    if not isinstance(value, (list, tuple)) or not value:
        return []
    if all(isinstance(v, bool) for v in value):
        return [[i == k for i in range(len(value))] for k, v in enumerate(value) if v]
    if len(value) == 1:
        return []
    if any(isinstance(v, torch.fx.Node) for v in value):
        return [list(value[:1])]
    same = [[plain] * len(value) for plain in (0, 1)]
    return [v for v in same if v != list(value)] if all(isinstance(v, int) for v in value) else []


def _without_keyword(state: State, name: str, key: str) -> State | None:
    def change(graph: torch.fx.Graph, node: torch.fx.Node) -> bool:
        there = key in node.kwargs
        node.kwargs = {k: v for k, v in node.kwargs.items() if k != key}
        return there

    return checked(edited(state, change, name))


def _without_last(state: State, name: str) -> State | None:
    def change(graph: torch.fx.Graph, node: torch.fx.Node) -> bool:
        schema = schema_arguments(node.target)
        if schema is None or not node.args or not schema[len(node.args) - 1].has_default:
            return False
        node.args = node.args[:-1]
        return True

    return checked(edited(state, change, name))


def _with_argument(state: State, name: str, place: int, value: Any) -> State | None:
    nodes = isinstance(value, list) and any(isinstance(v, torch.fx.Node) for v in value)

    def change(graph: torch.fx.Graph, node: torch.fx.Node) -> bool:
        if place >= len(node.args) or (not nodes and node.args[place] == value):
            return False
        new = [v for v in node.args[place] if getattr(v, "name", v) == value[0].name] if nodes else value
        changes = new != node.args[place]
        node.args = (*node.args[:place], new, *node.args[place + 1 :])
        return changes

    return checked(edited(state, change, name))
