"""On a GPU: Triton code that is wrong, and failures that only CUDA graphs bring."""

from __future__ import annotations

import pytest
import torch

from program_runs import environment, run_watched, sleuth

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_wrong_triton_code_is_code_generation_and_its_setting_is_named(tmp_path):
    source = """
        import torch
        import torch._inductor.config as config

        config.triton.inject_relu_bug_TESTING_ONLY = "accuracy"

        @torch.compile
        def f(x):
            y = torch.sin(x) * 2
            return torch.relu(y) + 1

        f(torch.randn(64, 64, device="cuda"))
    """
    recorded = run_watched(tmp_path, source, "--record-only", "--check-accuracy")
    assert len(recorded.cases) == 1, recorded.stderr
    ran = sleuth("triage", "last", cwd=tmp_path, env=environment(tmp_path))
    found = ran.case["triage"]
    assert (found["component"], found["part"], found["ops"]) == (
        "inductor",
        "codegen",
        ["aten.relu.default"],
    ), ran.stderr
    assert any("inject_relu_bug" in flag for flag in found["flags"]), found
    assert "torch.relu(y)" in found["code"] and "oncall: cpu inductor" not in found["labels"]


def test_what_fails_only_under_cuda_graphs_is_told_so(tmp_path):
    source = """
        import torch

        @torch.library.custom_op("mylib::peek", mutates_args=())
        def peek(x: torch.Tensor) -> torch.Tensor:
            return x * float(x.sum().item() > 0)

        @peek.register_fake
        def _(x):
            return torch.empty_like(x)

        @torch.compile(mode="reduce-overhead")
        def f(x):
            y = torch.sin(x)
            return torch.ops.mylib.peek(y) + 1

        for _ in range(4):
            f(torch.randn(64, 64, device="cuda"))
    """
    recorded = run_watched(tmp_path, source, "--record-only")
    assert len(recorded.cases) == 1, recorded.stderr
    ran = sleuth("triage", "last", cwd=tmp_path, env=environment(tmp_path))
    found = ran.case["triage"]
    assert (found["part"], found["subsystem"]) == ("cudagraphs", "cudagraphs"), ran.stderr
    assert "module: cuda graphs" in found["labels"]
