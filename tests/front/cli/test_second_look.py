"""Failures that the first script does not show: the program is run once more, or is the oracle itself."""

import shutil

import pytest

from program_runs import run_watched

NEEDS_VALUES = """
    import os
    import torch

    def backend(graph, inputs):
        def run(*args):
            if any((each == 12345.0).any() for each in args):
                os.abort()
            return graph(*args)
        return run

    @torch.compile(backend=backend)
    def f(x):
        return x.sin() + 1

    x = torch.zeros(40_000)  # too large to be kept before a first call
    f(x)
    x[77] = 12345.0
    f(x)
"""


@pytest.mark.slow
def test_a_crash_that_needs_real_values_is_reproduced_after_a_second_run(tmp_path):
    ran = run_watched(tmp_path, NEEDS_VALUES, "--minify", "--budget", "200")
    assert ran.case["kind"] == "crash" and ran.case["calls"][0][1] == 2
    assert any("running the program once more" in line for line in ran.ours())
    assert ran.case["verified"]["same_signature"], ran.stderr
    assert ran.case["triage"]["component"] == "backend"
    assert ran.case["minified"]["calls"] == 1


STATEFUL = """
    import os
    import torch

    def backend(graph, inputs):
        def run(*args):
            if os.environ.get("LOST"):
                raise RuntimeError("the kernel has lost its state")
            return graph(*args)
        return run

    @torch.compile(backend=backend)
    def f(x):
        return x.sin() + 1

    os.environ["LOST"] = "1"  # something that no graph knows of
    f(torch.zeros(3))
"""


@pytest.mark.slow
def test_where_no_graph_fails_the_program_says_who_is_at_fault_and_what_helps(tmp_path):
    ran = run_watched(tmp_path, STATEFUL, "--minify", "--budget", "200")
    assert ran.case["kind"] == "runtime_error"
    assert any("no graph of the program fails by itself" in line for line in ran.ours())
    assert ran.case["triage"]["component"] == "backend"
    assert ran.case["triage"]["rungs"], "the program was run"
    best = ran.case["workarounds"][0]
    assert best["verified"] and best["program"] and "backend=" in best["how"]
    # What no graph shows the program does, as a script like any other.
    assert ran.case["verified"]["reproduced"] == 3 and ran.case["verified"]["eager_passes"]
    assert "lost its state" in (repro := ran.file("repro.py")) and len(repro.splitlines()) <= 40


WRONG_GRADIENT = """
    import torch

    class Off(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            return grad * 1.25

    def backend(graph, inputs):
        return lambda *args: graph(*(Off.apply(each) for each in args))

    @torch.compile(backend=backend)
    def f(x):
        return x.sin() * 2

    f(torch.ones(4, requires_grad=True)).sum().backward()
"""


def test_a_wrong_gradient_behind_a_right_result_is_reproduced(tmp_path):
    ran = run_watched(tmp_path, WRONG_GRADIENT, "--check-accuracy")
    assert ran.case["kind"] == "accuracy" and ran.case["signature"]["outputs"] == ["gradients[0]"]
    assert ran.case["verified"]["same_signature"], ran.stderr


OVERLAP_LATER = """
    import torch

    @torch.compile(backend="aot_eager")
    def halved(a, b):
        a.mul_(0.5)
        return a + b

    halved(torch.ones(6), torch.ones(6))
    line = torch.linspace(1, 2, 9)
    halved(line[:6], line[3:])
"""


@pytest.mark.slow
def test_what_was_compiled_for_inputs_apart_is_reproduced_with_inputs_that_overlap(tmp_path):
    ran = run_watched(tmp_path, OVERLAP_LATER, "--check-accuracy", "--minify", "--budget", "200")
    assert ran.case["kind"] == "accuracy" and ran.case["calls"][0][1] == 2
    assert ran.case["verified"]["same_signature"], ran.stderr
    assert ran.case["triage"]["component"] == "aot_autograd"
    assert "compiled for inputs that share no memory" in ran.file("repro.py")


FROM_CACHE = """
    import os
    import torch

    if os.environ.get("POISON"):  # a compiler that was wrong once, and has left its code behind
        from torch._inductor.lowering import lowerings
        lowerings[torch.ops.aten.sin.default] = lowerings[torch.ops.aten.cos.default]

    @torch.compile
    def f(x):
        return (x * 2).sin() + 1

    print(f(torch.arange(8.0)))
"""


@pytest.mark.slow
def test_wrong_code_in_the_compile_cache_is_called_that(tmp_path):
    # Under watch as well: a check has Inductor draw eager's random numbers, for which torch keeps other code.
    run_watched(tmp_path, FROM_CACHE, "--check-accuracy", "--record-only", POISON="1")
    shutil.rmtree(tmp_path / "cases")
    ran = run_watched(tmp_path, FROM_CACHE, "--minify", "--check-accuracy", "--budget", "300")
    assert ran.case["kind"] == "accuracy" and ran.case["verified"]["reproduced"] == 0
    assert (ran.case["triage"]["component"], ran.case["triage"]["part"]) == ("inductor", "compile cache")
    assert str(tmp_path / "cache") in ran.case["triage"]["detail"]
    assert ran.case["workarounds"][0]["name"] == "an empty compile cache"
    assert ran.case["workarounds"][0]["verified"]
