"""Where some call is needed but not that one, a plainer one takes its place."""

import torch

from made_graphs import Oracle, aten, holds, traced
from torchsleuth.search.minify.driver import search
from torchsleuth.search.minify.engine import Engine
from torchsleuth.search.minify.reducers.calls import plainer_calls


def relu_reads_a_call(state):
    found = [n for n in state.graph.graph.nodes if n.target is aten.relu.default]
    return any(n.args[0].op == "call_function" for n in found)


def test_a_product_before_the_culprit_becomes_a_plain_call_of_one_input():
    state = traced(
        lambda x, w: (aten.relu.default(aten.mm.default(x, w)),), torch.ones(3, 3), torch.ones(3, 3)
    )
    found = search(state, Oracle(relu_reads_a_call))
    assert found.calls == 2 and len(found.state.inputs) == 1
    assert holds(found.state, aten.relu.default, aten.neg.default)


def test_a_call_that_matters_itself_stays():
    state = traced(
        lambda x, w: (aten.relu.default(aten.mm.default(x, w)),), torch.ones(3, 3), torch.ones(3, 3)
    )
    found = search(state, Oracle(lambda s: relu_reads_a_call(s) and holds(s, aten.mm.default)))
    assert holds(found.state, aten.relu.default, aten.mm.default)


def test_functions_are_replaced_by_functions():
    state = traced(lambda x: torch.relu(torch.softmax(x, -1)), torch.ones(3))
    engine = Engine(Oracle(lambda s: holds(s, torch.relu)), state)
    assert holds(engine.settle("calls", plainer_calls), torch.relu, torch.neg)


def test_one_call_by_itself_is_not_touched():
    assert not list(plainer_calls(traced(lambda x: (aten.softmax.int(x, -1),), torch.ones(3))))
