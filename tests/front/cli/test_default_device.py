"""A program that has set another default device: what torchsleuth makes for itself lies where it has to, all the same."""

import pytest

from program_runs import run_watched

ELSEWHERE = """
    import sys, torch
    import torch._inductor.config as config

    torch.set_default_device("meta")
    here = torch.Generator("cpu").manual_seed(0)

    def numbers(*shape):
        return torch.randn(*shape, device="cpu", generator=here)
"""


def test_a_healthy_training_step_is_judged_and_not_changed(tmp_path):
    source = (
        ELSEWHERE
        + """
    with torch.device("cpu"):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.3))
    step = torch.compile(lambda x: net(x) + torch.ones(16, device="cpu"))
    for _ in range(2):
        step(numbers(32, 8)).square().mean().backward()
    print(float(net[0].weight.grad.sum()))
    """
    )
    ran = run_watched(tmp_path, source, "--check-accuracy")
    assert (ran.status, ran.cases) == (0, []), ran.stderr
    assert "not be run" not in ran.stderr and "inside torchsleuth" not in ran.stderr


def test_a_model_that_has_no_values_at_all_is_left_in_peace(tmp_path):
    source = """
        import torch

        torch.set_default_device("meta")
        net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())

        @torch.compile(backend="aot_eager")
        def model(x):
            return torch.relu(net(x) + torch.arange(8) / 8).sum(-1)

        print(model(torch.randn(4, 8)).device)
    """
    ran = run_watched(tmp_path, source, "--check-accuracy")
    assert (ran.status, ran.stdout, ran.cases) == (0, "meta\n", []), ran.stderr
    assert "inside torchsleuth" not in ran.stderr


@pytest.mark.parametrize("kind", ["accuracy", "runtime_error", "compile_error"])
def test_a_failure_is_a_case_with_a_script_that_fails(tmp_path, kind):
    source = (
        ELSEWHERE
        + f"""
    config.cpp.inject_relu_bug_TESTING_ONLY = {kind!r}

    @torch.compile
    def model(x, w):
        return torch.relu(x @ w).sum(-1) + torch.arange(8, device="cpu")

    try:
        model(numbers(8, 8), numbers(8, 8))
    except Exception as error:
        print(type(error).__name__)
    """
    )
    options = ["--check-accuracy"] if kind == "accuracy" else []
    ran = run_watched(tmp_path, source, *options)
    assert ran.case["kind"] == kind, ran.stderr
    assert ran.case["verified"]["reproduced"] == 1, ran.stderr
    assert ran.case["kept"]["by_value"] == (0 if kind == "compile_error" else 2)
    assert "inside torchsleuth" not in ran.stderr


def test_the_script_of_a_call_that_cannot_be_captured_makes_its_tensors_where_the_program_does(tmp_path):
    source = """
        import torch

        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")

        def grid(n):
            return torch.arange(n) / 2

        @torch.compile(fullgraph=True, backend="eager")
        def model(x, scale=2.0):
            made = grid(4)
            if made.device.type == "meta" and made.dtype is torch.float64:
                torch._dynamo.graph_break()
            return x.sin() * scale

        try:
            model(torch.ones(4, device="cpu", dtype=torch.float32), scale=3.0)
        except Exception as error:
            print(type(error).__name__)
    """
    ran = run_watched(tmp_path, source)
    assert ran.case["kind"] == "capture_error", ran.stderr
    assert ran.case["verified"]["reproduced"] == 1, ran.file("original.py")
