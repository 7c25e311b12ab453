import pytest
import torch
from torch import fx

from torchsleuth.compare.verdict.calibrate import UNCALIBRATED
from torchsleuth.compare.verdict.gradients import judge_gradients
from torchsleuth.compare.verdict.verdict import WITHIN_NOISE


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.norm = torch.nn.Linear(16, 32), torch.nn.LayerNorm(32)

    def forward(self, x):
        return torch.nn.functional.gelu(self.norm(self.up(x)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_inputs_and_parameters_of_a_healthy_function_are_within_noise(dtype):
    graph = fx.symbolic_trace(Net().to(dtype))
    x = torch.randn(8, 16).to(dtype).requires_grad_()
    verdict = judge_gradients(graph, [x], graph, calibration=UNCALIBRATED)
    assert verdict.kind == WITHIN_NOISE and len(verdict.leaves) == 6
    assert x.grad is None


class WrongBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        return grad * 1.001


def test_a_wrong_gradient_behind_a_right_output_diverges():
    graph = fx.symbolic_trace(Net())

    def wrong(x):
        return graph(WrongBackward.apply(x))

    verdict = judge_gradients(graph, [torch.randn(8, 16).requires_grad_()], wrong, calibration=UNCALIBRATED)
    assert verdict.diverged and verdict.worst.path == "outputs[1][0]"
    assert [leaf.kind for leaf in verdict.leaves if leaf.path != "outputs[1][0]"] == [WITHIN_NOISE] * 5


def test_a_function_without_gradients_is_judged_by_its_outputs():
    graph = fx.symbolic_trace(lambda x: x.sin())
    assert judge_gradients(graph, [torch.rand(8)], torch.sin, calibration=UNCALIBRATED).kind == WITHIN_NOISE
