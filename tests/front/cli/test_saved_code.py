"""Code that is compiled first and run later, from a package or a file: healthy programs are left as they are, and what
fails becomes a case."""

import pytest

from program_runs import run_bare, run_watched

PACKAGE = """
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor([2.0, 3.0]))

        def forward(self, x):
            return (x * self.scale).sinh() + 1

    x = torch.tensor([[0.0, 0.0], [0.5, 0.25]])
    path = torch._inductor.aoti_compile_and_package(torch.export.export(Net(), (x,)), package_path="net.pt2")
    print(torch._inductor.aoti_load_package(path)(x))
"""

SAVED = """
    import torch

    torch.compile(lambda x: x.sin())(torch.ones(3))  # an earlier compile
    def f(x, y):
        return x.sinh() + y
    made = torch.compile(f, fullgraph=True).aot_compile(((torch.zeros(3), torch.ones(3)), {}))
    print(made(torch.zeros(3), torch.ones(3)))
    made.save_compiled_function("f.bin")
"""

LOADED = """
    import torch

    with open("f.bin", "rb") as file:
        print(torch.compiler.load_compiled_function(file)(torch.zeros(3), torch.ones(3)))
"""


@pytest.mark.slow
def test_a_package_of_aotinductor_is_made_and_run_as_without_us(tmp_path):
    ran = run_watched(tmp_path, PACKAGE, "--check-accuracy")
    assert (ran.status, ran.cases) == (0, []), ran.stderr
    assert ran.stdout == "tensor([[1.0000, 1.0000],\n        [2.1752, 1.8223]])\n"
    assert "watched 1 captured graph" in ran.ours()[-1], ran.stderr


@pytest.mark.slow
def test_a_package_that_cannot_be_compiled_is_a_case_with_its_script(tmp_path):
    ran = run_watched(tmp_path, PACKAGE, fault="aten.sinh.default:raise")
    assert ran.status == 1 and "PlantedFault" in ran.stderr
    assert (ran.case["kind"], ran.case["after"]) == ("compile_error", "aot")
    assert ran.case["verified"]["reproduced"] == ran.case["verified"]["times"], ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("act, kind", [("wrong", "accuracy"), ("run_segv", "crash")])
def test_a_package_that_runs_wrong_or_dies_is_a_case(tmp_path, act, kind):
    options = ["--check-accuracy"] if act == "wrong" else []
    ran = run_watched(tmp_path, PACKAGE, "--record-only", *options, fault=f"aten.sinh.default:{act}")
    assert (ran.case["kind"], ran.case["phase"], ran.case["graph"]["calls"]) == (kind, "run", 3), ran.stderr


def test_a_function_compiled_ahead_of_time_is_saved_and_loaded_as_without_us(tmp_path):
    for source in (SAVED, LOADED):
        ran = run_watched(tmp_path, source)
        assert (ran.status, ran.cases) == (0, []), ran.stderr
        assert ran.stdout == "tensor([1., 1., 1.])\n"


@pytest.mark.slow
def test_a_saved_function_that_dies_in_another_process_is_a_case_that_says_why_it_has_no_script(tmp_path):
    only_saved = SAVED.replace("print(made(torch.zeros(3), torch.ones(3)))", "")
    assert run_watched(tmp_path, only_saved, fault="aten.sinh.default:run_raise").cases == []
    ran = run_watched(tmp_path, LOADED, "--record-only", fault="aten.sinh.default:run_segv")
    assert (ran.case["kind"], ran.case["phase"]) == ("crash", "run"), ran.stderr
    assert "compiled by another process" in ran.case["no_repro"]


@pytest.mark.slow
def test_weights_that_freezing_puts_into_the_graph_do_not_look_like_wrong_gradients(tmp_path):
    source = """
        import torch
        torch._dynamo.config.prepare_freezing = True
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Tanh())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        step = torch.compile(lambda x: net(x).sum())
        for i in range(3):
            loss = step(torch.arange(8.0).reshape(2, 4) * (i + 1) ** 2 % 3)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        print(net[1].running_mean.tolist(), int(net[1].num_batches_tracked))
    """
    bare = run_bare(tmp_path / "bare", source)
    ran = run_watched(tmp_path / "watched", source, "--check-accuracy")
    assert (ran.status, ran.cases) == (0, []), ran.stderr
    assert ran.stdout == bare.stdout


PRECOMPILED = """
    import torch

    precompile, x = torch.compiler.precompile, torch.ones(3)
    places = {"artifact_path": "m.py", "cache_path": "m.cache"}
    with precompile.capture(lambda x: x.sinh() + 1, **places) as captured:
        captured(x)
    loaded = precompile.load("m.py", "m.cache")
    print(isinstance(loaded, precompile.PrecompiledRunnable), loaded(x))
    loaded(torch.ones(5))
"""


@pytest.mark.since_torch("2.15")
def test_what_fails_in_a_precompiled_artefact_is_a_case(tmp_path):
    done = run_watched(tmp_path, PRECOMPILED, "--record-only")
    assert done.stdout.startswith("True tensor([2.1752"), done.stderr
    assert done.case["kind"] == "runtime_error" and "PrecompileError" in done.case["signature"]["summary"]
    assert "the precompiled artefact was compiled by another process" in done.case["no_repro"]
