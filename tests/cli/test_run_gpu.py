"""Failures on a GPU: in Triton's compiler, at run time, and asynchronous ones caught in the graph that caused them."""

import pytest

from program_runs import run_watched

pytestmark = pytest.mark.gpu

TWO_GRAPHS = """
    import torch
    import torch._inductor.config as config

    {settings}

    @torch.compile
    def harmless(x):
        return x.sin() + 1

    @torch.compile
    def guilty(x):
        return torch.relu(x - 1) * 2

    x = torch.randn(64, 64, device="cuda")
    print(harmless(x).shape)
    try:
        print(guilty(x).shape)
        torch.cuda.synchronize()
    except Exception as error:
        print("failed", type(error).__name__)
"""


@pytest.mark.parametrize(
    ("bug", "kind", "phase"),
    [("compile_error", "compile_error", "compile"), ("runtime_error", "runtime_error", "run")],
)
def test_a_triton_failure_becomes_a_case_of_the_guilty_graph_with_a_repro(tmp_path, bug, kind, phase):
    source = TWO_GRAPHS.format(settings=f"config.triton.inject_relu_bug_TESTING_ONLY = {bug!r}")
    ran = run_watched(tmp_path, source)
    case = ran.case
    assert (case["kind"], case["phase"], case["device"]) == (kind, phase, "cuda"), ran.stderr
    assert "relu" in ran.file("graph.py") and "sin" not in ran.file("graph.py")
    assert case["verified"]["reproduced"] == 1, ran.stderr


def test_a_wrong_result_on_the_gpu_is_found_and_healthy_graphs_are_not_accused(tmp_path):
    source = TWO_GRAPHS.format(settings="config.triton.inject_relu_bug_TESTING_ONLY = 'accuracy'")
    ran = run_watched(tmp_path, source, "--check-accuracy")
    assert ran.case["kind"] == "accuracy" and "relu" in ran.file("graph.py"), ran.stderr
    assert ran.case["verified"]["reproduced"] == 1, ran.stderr


def test_an_illegal_memory_access_is_caught_in_the_call_that_caused_it(tmp_path):
    source = """
        import torch
        import torch._inductor.config as config
        config.assert_indirect_indexing = False

        @torch.compile
        def gather(table, index):
            return table[index] + 1

        @torch.compile
        def later(x):
            return x.cos()

        table = torch.randn(1024, device="cuda")
        index = torch.full((256,), 1 << 40, device="cuda")
        try:
            y = gather(table, index)
            later(y)
            torch.cuda.synchronize()
        except Exception as error:
            print("failed", type(error).__name__)
    """
    ran = run_watched(tmp_path, source)
    assert ran.stdout.startswith("failed"), ran.stderr
    case = ran.case
    assert (case["kind"], case["phase"]) == ("runtime_error", "run"), ran.stderr
    assert "index" in ran.file("graph.py") and "cos" not in ran.file("graph.py")
    assert case["kept"]["by_value"] >= 1  # the indices were on disk before the call
    assert case["verified"]["reproduced"] == 1, ran.stderr


def test_cuda_graphs_and_random_numbers_pass_the_accuracy_check(tmp_path):
    source = """
        import torch
        net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.5), torch.nn.GELU()).cuda()
        step = torch.compile(lambda x: net(x).square().mean(), mode="reduce-overhead")
        for _ in range(4):
            step(torch.randn(32, 64, device="cuda")).backward()
            net.zero_grad(set_to_none=True)
        print("done")
    """
    ran = run_watched(tmp_path, source, "--check-accuracy")
    assert (ran.status, ran.stdout, ran.cases) == (0, "done\n", []), ran.stderr


def test_a_triton_failure_is_made_small_on_the_device(tmp_path):
    source = TWO_GRAPHS.format(settings="config.triton.inject_relu_bug_TESTING_ONLY = 'compile_error'")
    ran = run_watched(tmp_path, source, "--minify")
    small = ran.case["minified"]
    assert small["calls"] == 1 and "relu" in small["ops"][0], (small, ran.stderr)
    verified = {"times": 3, "reproduced": 3, "same_signature": True, "error": None, "eager_passes": True}
    assert ran.case["verified"] == verified, ran.stderr
    assert "cuda" in ran.file("repro.py")
