"""States, fake oracles and a listener for tests of reducers: nothing is ever compiled here."""

import torch

from torchsleuth.core.cases.record import CompileSettings
from torchsleuth.search.minify import contract
from torchsleuth.search.minify.states import state_of

aten = torch.ops.aten


def traced(function, *values, fakes=None, any_values=False, **settings):
    """The state of a function on these inputs, under settings as they stand in a record."""
    graph, settings = torch.fx.symbolic_trace(function), CompileSettings.from_json(settings)
    return state_of(graph, list(values), fakes=fakes, settings=settings, any_values=any_values)


def holds(state, *targets):
    """Whether every target is called somewhere in the state's graphs."""
    called = [
        n.target
        for part in state.graph.modules()
        if isinstance(part, torch.fx.GraphModule)
        for n in part.graph.nodes
        if n.op.startswith("call")
    ]
    return all(target in called for target in targets)


class Oracle(contract.Oracle):
    """Answers by a predicate on states, and remembers what it was asked."""

    def __init__(self, fails):
        self.fails, self.asked = fails, []

    def __call__(self, states):
        self.asked += states
        return [bool(self.fails(s)) for s in states]


def shapes(state):
    return [tuple(i.spec.shape) for i in state.inputs if i.is_tensor]


def node(state, target):
    return next(n for n in state.graph.graph.nodes if n.target == target and n.op.startswith("call"))
