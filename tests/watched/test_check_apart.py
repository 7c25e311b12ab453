"""A check that hangs, dies or fills the memory is one line: the program's bytes, status and compiles are its own."""

import json

import pytest

from program_runs import run_bare, run_watched
from torchsleuth.core.processes.sealed import why_not_sealable

pytestmark = pytest.mark.skipif(
    why_not_sealable() is not None, reason="needs processes that can be sealed off"
)

# The second run of the operator is that of the check: the first one is the program's own. Made in another thread, the
# call is looked at in a process beside the program, as on a device; nothing of that is watched.
ODD = """
import ctypes, os, sys, threading, time, torch
runs = 0
def act():
    import ctypes, time
    {act}
@torch.library.custom_op("apart::odd", mutates_args=())
def odd(x: torch.Tensor) -> torch.Tensor:
    global runs
    runs += 1
    if runs == 2 or "TORCHSLEUTH_WATCH" not in os.environ and {watched}:
        act()
    return x + 1
odd.register_fake(lambda x: torch.empty_like(x))
f = torch.compile(lambda x: odd(x).cos(), backend="eager")
def program():
    print(f(torch.ones(3, device="{device}")).cpu(), runs)
{run}
"""
FORK = {"watched": False, "run": "program()", "device": "cpu"}
BESIDE = {
    "watched": True,
    "run": "thread = threading.Thread(target=program); thread.start(); thread.join()",
    "device": "cpu",
}
ON_GPU = {"watched": True, "run": "program()", "device": "cuda"}
FILLS_MEMORY = "kept = [bytearray(64 << 20) for _ in range(1 << 16)]"


@pytest.mark.parametrize(
    "road, act, why",
    [
        (FORK, "ctypes.string_at(0)", "status -11"),
        (FORK, FILLS_MEMORY, "MemoryError"),
        (FORK, "open('made-by-the-check', 'w')", "writes a file"),
        pytest.param(FORK, "time.sleep(1000)", "took longer than", marks=pytest.mark.slow),
        (BESIDE, "ctypes.string_at(0)", "has ended: Segmentation fault"),
        (BESIDE, FILLS_MEMORY, "it took more than"),
        (BESIDE, "raise ValueError('no')", "it does not run there: ValueError: no"),
        (BESIDE, "open('made-by-the-check', 'w')", "PermissionError"),
        pytest.param(BESIDE, "time.sleep(1000)", "took longer than", marks=pytest.mark.slow),
        *(
            pytest.param(ON_GPU, act, why, marks=pytest.mark.gpu)
            for act, why in [
                ("ctypes.string_at(0)", "has ended: Segmentation fault"),
                (FILLS_MEMORY, "it took more than"),
                ("kept = torch.empty(1 << 36, device='cuda')", "OutOfMemoryError"),
                (
                    "torch._assert_async(torch.zeros((), device='cuda')); torch.cuda.synchronize()",
                    "AcceleratorError",
                ),
                ("time.sleep(1000)", "took longer than"),
            ]
        ),
    ],
)
def test_what_happens_to_the_check_is_one_line_and_nothing_to_the_program(tmp_path, road, act, why):
    source = ODD.format(act=act, **road)
    ran = run_watched(tmp_path, source, "--check-accuracy", "--check-budget", "1")
    assert (ran.status, ran.cases) == (0, []), ran.stderr
    assert ran.stdout == "tensor([-0.4161, -0.4161, -0.4161]) 1\n"
    (line,) = [line for line in ran.ours() if "not compared" in line and "graph" in line]
    assert "1 graph is not compared with eager" in line and why in line
    assert not (tmp_path / "made-by-the-check").exists()


@pytest.mark.slow
def test_a_check_that_hangs_is_no_hang_of_the_program(tmp_path):
    ran = run_watched(
        tmp_path, ODD.format(act="time.sleep(1000)", **FORK), "--check-accuracy", "--timeout", "20"
    )
    assert (ran.status, ran.cases) == (0, []), ran.stderr


def test_the_users_compiler_is_called_as_often_as_without_the_check(tmp_path):
    source = """
        import torch
        from functorch.compile import make_boxed_func
        from torch._dynamo.backends.common import aot_autograd

        def compiler(name):
            return lambda graph, inputs: compiled.append(name) or make_boxed_func(graph.forward)

        for freezing, backward in ((False, False), (True, False), (False, True)):
            torch.compiler.reset()
            torch._dynamo.config.prepare_freezing = freezing
            compiled = []
            net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
            f = torch.compile(lambda x: net(x).square().sum(), backend=aot_autograd(fw_compiler=compiler("forward"),
                              bw_compiler=compiler("backward")))
            for _ in range(2):
                loss = f(torch.arange(6.0).reshape(2, 3))
                if backward:
                    loss.backward()
            print(*compiled)
    """
    bare = run_bare(tmp_path / "bare", source)
    assert bare.stdout == "forward\nforward\nforward backward\n", bare.stderr
    ran = run_watched(tmp_path / "watched", source, "--check-accuracy")
    assert (ran.status, ran.stdout, ran.cases) == (0, bare.stdout, []), ran.stderr


def test_gradients_that_only_the_autograd_graph_has_wrong_are_a_case_once_the_program_runs_backward(tmp_path):
    source = """
        import torch
        class Wrong(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.sin()
            @staticmethod
            def backward(ctx, gradient):
                return gradient * 3
        def backend(graph, inputs):
            return lambda *args: [Wrong.apply(*args)]
        f = torch.compile(lambda x: x.sin(), backend=backend)
        x = torch.ones(3, requires_grad=True)
        f(x).sum().backward()
        print(x.grad)
    """
    ran = run_watched(tmp_path, source, "--check-accuracy", "--record-only")
    assert ran.case["kind"] == "accuracy" and ran.stdout == "tensor([3., 3., 3.])\n", ran.stderr


def test_a_gradient_that_is_lost_is_a_case_though_no_backward_of_the_graph_ever_comes(tmp_path):
    """pytorch#195357: outputs that are to be trained and lead back to nothing."""
    source = """
        import torch
        def f(x):
            y = torch.sin(x)
            return y[0:4], y[4:8], y.detach()
        x = torch.ones(8, requires_grad=True)
        a, b, _ = torch.compile(f)(x)
        (a.sum() + b.sum()).backward()
        print(x.grad)
    """
    if run_bare(tmp_path / "bare", source).stdout != "None\n":
        pytest.skip("this release of torch loses no gradient here")
    ran = run_watched(tmp_path / "watched", source, "--check-accuracy", "--record-only")
    assert ran.stdout == "None\n" and ran.case["signature"]["outputs"] == ["gradients[0]"], ran.stderr


def test_a_backward_outside_of_the_autocast_of_its_forward_does_not_look_like_wrong_gradients(tmp_path):
    source = """
        import torch
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
        step = torch.compile(net, backend="aot_eager")
        with torch.autocast("cpu", torch.bfloat16):
            loss = step(torch.randn(16, 8)).square().sum()
        loss.backward()
    """
    ran = run_watched(tmp_path, source, "--check-accuracy", "--record-only")
    assert (ran.status, ran.cases) == (0, []), ran.stderr


TRAINS_IN_A_THREAD = """
    import threading, torch
    ran = []
    @torch.library.custom_op("apart::counted", mutates_args=())
    def counted(x: torch.Tensor) -> torch.Tensor:
        ran.append(1)
        return x.clone()
    counted.register_fake(lambda x: torch.empty_like(x))
    counted.register_autograd(lambda ctx, gradient: gradient)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5))
    f = torch.compile(lambda x: {call}, backend="aot_eager")
    def program():
        for _ in range(2):
            f(torch.arange(6.0).reshape(2, 3)).square().sum().backward()
        print(len(ran), net[1].running_mean, net[1].num_batches_tracked, net[0].weight.grad, torch.rand(2))
        print([p._version for p in (*net.parameters(), *net.buffers())])
    thread = threading.Thread(target=program)
    thread.start()
    thread.join()
"""


@pytest.mark.parametrize("call", ["net(x)", "counted(net(x))"])
def test_the_run_that_shows_gradients_beside_a_program_changes_none_of_its_state(tmp_path, call):
    source = TRAINS_IN_A_THREAD.format(call=call)
    bare = run_bare(tmp_path / "bare", source)
    ran = run_watched(tmp_path / "watched", source, "--check-accuracy", "--check-budget", "200")
    assert (ran.status, ran.stdout, ran.cases) == (0, bare.stdout, []), bare.stderr + ran.stderr


def test_the_users_operators_are_not_run_once_more_in_the_program_for_gradients(tmp_path):
    source = TRAINS_IN_A_THREAD.format(call="counted(net(x))")
    ran = run_watched(tmp_path, source, "--check-accuracy", "--check-budget", "200", "--json")
    (said,) = [r for r in json.loads(ran.stdout)["accuracy"] if r["kind"] == "GRADIENTS_NOT_COMPARED"]
    assert "it would run apart::counted, which is the program's own, once more" in said["sentence"], (
        ran.stderr
    )
