"""Graphs that take gradients themselves: what is left is the gradient of the call at fault, and it runs in eager."""

import torch

from made_graphs import holds
from torchsleuth.core.cases.record import AmbientState, CompileSettings
from torchsleuth.search.minify.driver import search
from torchsleuth.search.minify.reducers.gradients import plain_gradients
from torchsleuth.search.minify.states import real_inputs, state_of


def captured(function, *values):
    """The graph of Dynamo's, with its inputs."""
    seen = []

    def keep(graph, inputs):
        seen.append((graph, inputs))
        return graph.forward

    torch.compile(function, backend=keep)(*values)
    ((graph, inputs),) = seen
    settings = CompileSettings(state=AmbientState(grad=True))
    return state_of(graph, [each.detach() for each in inputs], settings=settings, any_values=True)


def energy(x, weight):
    for _ in range(6):
        x = torch.tanh(x @ weight) + x
    x = torch.atan(x)
    return torch.nn.functional.softplus(x @ weight).sum()


def forces(x, weight):
    return -torch.func.grad(energy)(x, weight)


def runs_in_eager(state):
    try:
        state.graph(*real_inputs(state))
    except RuntimeError:
        return False
    return True


def differentiates(state):
    """Whether a gradient is taken through an arc tangent, and the graph runs."""
    made = state.graph.graph
    grads = [n for n in made.nodes if getattr(n.target, "__name__", "") == "_autograd_grad"]
    todo = [source for node in grads for source in node.all_input_nodes]
    above = set()
    while todo:
        node = todo.pop()
        above.add(node.target)
        todo += node.all_input_nodes
    return torch.atan in above and runs_in_eager(state)


def test_of_a_gradient_of_a_deep_function_the_one_of_the_call_at_fault_is_left():
    state = captured(forces, torch.randn(3, 3), torch.randn(3, 3))
    assert differentiates(state)
    found = search(state, lambda states: [differentiates(each) for each in states])
    assert found.complete and found.calls <= 4, found.state.graph.code
    assert holds(found.state, torch.atan) and runs_in_eager(found.state)


def test_of_several_tensors_only_one_is_left_to_differentiate_by():
    def of_both(x, weight):
        return torch.func.grad(energy, argnums=(0, 1))(x, weight)

    found = search(
        captured(of_both, torch.randn(3, 3), torch.randn(3, 3)),
        lambda states: [differentiates(each) for each in states],
    )
    assert len(found.state.inputs) == 1


def test_a_call_that_fails_without_its_gradient_is_left_without_it():
    state = captured(forces, torch.randn(3, 3), torch.randn(3, 3))
    opening = [
        n for n in state.graph.graph.nodes if getattr(n.target, "__name__", "") == "_grad_increment_nesting"
    ]
    (plain,) = [edit.apply(state) for edit in plain_gradients(state)]
    assert holds(state, opening[0].target) and not holds(plain, opening[0].target)
    found = search(plain, lambda states: [holds(each, torch.atan) for each in states])
    assert found.calls == 1, "what does not need a gradient is not left with one"
