"""What passes leave of a graph runs without being lowered, and a wrong pass or decomposition shows."""

from unittest.mock import patch

import pytest
import torch

from torchsleuth.torch_internals.compile_stages import passes_alone
from torchsleuth.torch_internals.configuration import restore_settings, saved_settings, see_every_compile


@pytest.fixture(autouse=True)
def _settings():
    saved = saved_settings()
    see_every_compile()
    torch._dynamo.reset()
    yield
    restore_settings(saved)


def without_lowering(function, *args):
    import torch._inductor.graph

    def never(*_, **__):
        raise AssertionError("the graph was lowered")

    with patch.object(torch._inductor.graph.GraphLowering, "run", never), passes_alone():
        result = torch.compile(function)(*args)
        result.sum().backward()
    return result


def test_results_and_gradients_are_those_of_eager():
    x, twin = (torch.arange(6.0).reshape(2, 3).requires_grad_() for _ in range(2))

    def function(x):
        return torch.softmax(x @ x.t(), -1).exp()

    want = function(twin)
    want.sum().backward()
    torch.testing.assert_close(without_lowering(function, x), want)
    torch.testing.assert_close(x.grad, twin.grad)


def test_a_wrong_pass_over_the_joint_graph_shows():
    import torch._inductor.config as config

    def wrong(graph):
        for node in graph.nodes:
            if node.target is torch.ops.aten.sin.default:
                node.target = torch.ops.aten.cos.default

    x = torch.ones(3, requires_grad=True)
    with config.patch(joint_custom_post_pass=wrong):
        torch.testing.assert_close(without_lowering(torch.sin, x), torch.cos(x))
