"""The exact node at which a wrong result begins, in Triton kernels and library kernels on a device."""

import json

import pytest
import torch
from planted import aten, wrong_lowering
from test_culprits import Conv, Norm, attention, scaled

import torchsleuth
from program_runs import environment, run_watched, sleuth

pytestmark = pytest.mark.gpu

ROWS = {
    "pointwise": (lambda x: (x * 2).sin().exp() + 1, aten.sin.default, None, "sin"),
    "reduction": (lambda x: x.exp().amax(-1).sin() + 1, aten.amax.default, scaled, "amax"),
    "softmax": (attention, aten.exp.default, None, "exp"),
    "norm": (Norm(), aten.rsqrt.default, scaled, "rsqrt"),
    "conv epilogue": (Conv(), aten.sigmoid.default, None, "sigmoid"),
}


@pytest.mark.parametrize("row", ROWS)
def test_the_node_at_which_a_wrong_result_begins_on_a_device(row):
    torch.manual_seed(0)
    model, op, change, culprit = ROWS[row]
    model = model.cuda() if isinstance(model, torch.nn.Module) else model
    x = torch.randn(2, 3, 8, 8) if row == "conv epilogue" else torch.randn(64, 16)
    with wrong_lowering(op, change):
        found = torchsleuth.compare_models(model, torch.compile(model), [x.cuda()])
    assert (found.component, found.node) == ("inductor", culprit), found.words
    assert found.analysis.culprit.kernel.startswith("triton_")
    assert found.analysis.culprit.recovers


def test_a_scatter_on_a_device():
    def model(x):
        places = torch.arange(x.shape[0], device=x.device).unsqueeze(1).expand_as(x) // 2
        return torch.zeros_like(x).scatter_add(0, places, x.exp()).tanh()

    with wrong_lowering(aten.scatter_add.default, scaled):
        found = torchsleuth.compare_models(model, torch.compile(model), [torch.randn(64, 16).cuda()])
    assert found.node == "scatter_add", found.words


def test_a_backward_and_a_healthy_bfloat16_model_on_a_device():
    x = torch.randn(16, 16, device="cuda", requires_grad=True)

    def model(x):
        return (x.sin() * x).tanh()

    with wrong_lowering(aten.cos.default):
        found = torchsleuth.compare_models(model, torch.compile(model), [x], backward=True)
    assert found.node == "cos", found.words
    healthy = torch.nn.Sequential(Norm(), torch.nn.GELU(), Norm()).cuda().bfloat16()
    x = torch.randn(32, 16, device="cuda", dtype=torch.bfloat16)
    found = torchsleuth.compare_models(healthy, torch.compile(healthy), [x], backward=True)
    assert found.agrees, found.words


WRONG_INSIDE = """
    import torch
    import torch._inductor.config as config

    config.triton.inject_relu_bug_TESTING_ONLY = "accuracy"
    torch.manual_seed(0)
    blocks = [torch.nn.Linear(512, 512).cuda() for _ in range(8)]

    @torch.compile
    def model(x):
        for block in blocks:
            x = torch.tanh(block(x)) + x
        return torch.relu(x).softmax(-1)

    with torch.no_grad():
        model(torch.randn(4096, 512, device="cuda"))
"""


def test_a_case_of_a_gpu_program_is_analysed_down_to_its_line(tmp_path):
    ran = run_watched(tmp_path, WRONG_INSIDE, "--record-only", "--check-accuracy")
    assert ran.case["kind"] == "accuracy", ran.stderr
    told = sleuth("analyze", "last", "--json", cwd=tmp_path, env=environment(tmp_path))
    assert told.status == 0, told.stderr
    found = json.loads(told.stdout)
    assert (found["culprit"]["op"], found["culprit"]["user_line"]) == (
        "aten.relu.default",
        "program.py:13",
    ), found
    assert found["culprit"]["kernel"].startswith("triton_") and found["culprit"]["recovers"]
