import pytest
import torch
from torch import fx

from torchsleuth.torch_core.compare.verdict.calibrate import UNCALIBRATED
from torchsleuth.torch_core.compare.verdict.judge import judge
from torchsleuth.torch_core.compare.verdict.look import judge_gradients
from torchsleuth.torch_core.compare.verdict.verdict import WITHIN_NOISE


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


def test_a_relu_that_rounding_decides_is_no_wrong_gradient():
    """A unit whose input is all but zero for one sample: its whole row of gradients hangs on that decision."""
    torch.manual_seed(0)
    x, w = torch.randn(64, 32, dtype=torch.float64), torch.randn(32, 48, dtype=torch.float64) / 6
    # The third unit of the sixth sample: orthogonal to its weights up to rounding in half precision.
    w[:, 2] -= x[5] * (x[5] @ w[:, 2]) / (x[5] @ x[5])
    graph = fx.symbolic_trace(lambda x, w: torch.relu((x * 1.1) @ w))
    inputs = [x.half(), w.half().requires_grad_()]

    def decided_otherwise(x, w):
        product = (x * 1.1) @ w
        nudge = torch.zeros_like(product)
        nudge[5, 2] = -2 * product[5, 2].detach()
        return torch.relu(product + nudge)

    assert not judge_gradients(graph, inputs, decided_otherwise, calibration=UNCALIBRATED).diverged


def test_gradients_that_accumulate_are_noisy_where_their_terms_cancel():
    """An embedding row read twice, with output gradients that all but cancel."""
    graph = fx.Graph()
    into, where, terms = (graph.placeholder(n) for n in ("into", "where", "terms"))
    put = graph.call_function(torch.ops.aten.index_put.default, (into, [where], terms, True))
    graph.output((put,))
    module = fx.GraphModule({}, graph)
    torch.manual_seed(0)
    terms_now = torch.randn(2, 64)
    terms_now[1] = -terms_now[0] * (1 + 1e-5)
    given = [torch.zeros(4, 64), torch.tensor([1, 1]), terms_now]

    def another_order(into, where, terms):
        exact = torch.zeros(4, 64, dtype=torch.float64).index_put([where], terms.double(), True)
        exact[1] += torch.finfo(torch.float32).eps * terms[0].abs()
        return (exact.float(),)

    assert not judge(module, given, another_order, calibration=UNCALIBRATED).diverged
