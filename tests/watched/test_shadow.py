"""Which backward a check of gradients waits for, and what a check hands on to the script that repeats it."""

from types import SimpleNamespace

import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses import FakeTensorMode

from torchsleuth.torch_internals.aot_autograd import compiled_function_of
from torchsleuth.watched import shadow
from torchsleuth.watched.shadow import tolerances_again
from torchsleuth.watched.watch import Watch


def test_a_changed_input_that_was_wrong_is_wrong_again_at_half_the_distance():
    apart = {"outputs[0]": 1e-6, "outputs[1]": 2.0, "inputs[3]": 1.0, "inputs[4]": 1e-6}
    wrong = ("outputs[1]", "inputs[3] (mutated)")
    assert tolerances_again(apart, wrong) == {
        "outputs[0]": 4e-6,
        "outputs[1]": 1.0,
        "inputs[3]": 0.5,
        "inputs[4]": 4e-6,
    }


def test_a_backward_is_to_come_until_aotautograd_has_compiled_it():
    def compiler(graph, inputs):
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=compiler, bw_compiler=compiler)
    x = torch.ones(2, 3, requires_grad=True)
    result = torch.compile(lambda x: x.sin().view(-1), backend=backend)(x)
    function = compiled_function_of([result.view(3, 2)])
    assert function.compiled_bw is None
    result.sum().backward()
    assert function.compiled_bw is not None
    assert compiled_function_of([x.exp()]) is None


def test_what_runs_the_engine_while_torch_traces_is_no_backward_of_the_programs(monkeypatch):
    looked = []
    monkeypatch.setattr(shadow, "check_gradients", looked.append)
    watch = SimpleNamespace(awaiting_backward={1: "a call"}, suspended=False)
    with FakeTensorMode():
        assert Watch.on_backward(watch, lambda: "traced") == "traced"
    assert looked == []
    assert Watch.on_backward(watch, lambda: "run") == "run"
    assert looked == [watch]
