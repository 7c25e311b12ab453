"""What `torchsleuth run` makes of programs that fail: every kind of failure, with a repro that was tried."""

import signal
import subprocess
import sys

import pytest

from program_runs import environment, run_bare, run_watched, sleuth

THREE_LAYERS = """
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x):
            x = self.one(x).cos()
            x = torch.sin(x)  # the culprit
            return self.two(x)

    torch.manual_seed(0)
    net = torch.compile(Net())
    out = net(torch.randn(3, 4))
    print("forward done")
    out.sum().backward()
    print("backward done")
"""


def verified(case):
    assert case["verified"] is not None, case
    return case["verified"]["reproduced"] == case["verified"]["times"] >= 1


RAISES = "aten.sin.default:raise"


@pytest.fixture(scope="module")
def raised(tmp_path_factory):
    """A run of three layers of which one cannot be compiled."""
    return run_watched(tmp_path_factory.mktemp("raised"), THREE_LAYERS, fault=RAISES)


def test_a_compile_error_becomes_a_case_and_reaches_the_user_unchanged(raised):
    ran, bare = raised, run_bare(raised.folder, THREE_LAYERS, fault=RAISES)
    case = ran.case
    assert (case["kind"], case["phase"], case["direction"], case["after"]) == (
        "compile_error",
        "compile",
        "forward",
        "aot",
    )
    assert "planted in aten.sin.default" in case["signature"]["summary"]
    assert "program.py:11" in case["graph"]["source_lines"]
    assert case["schema"] == 1 and case["minified"] is None and case["triage"] is None
    assert verified(case)
    # the program itself behaves as if torchsleuth were not there
    assert ran.status == bare.returncode == 1
    assert ran.stdout == bare.stdout
    theirs = [line for line in ran.stderr.splitlines() if not line.startswith("torchsleuth:")]
    assert theirs == bare.stderr.splitlines()
    assert f"case {case['id']}, first look" in ran.ours()[0]
    assert any(f"torchsleuth show {case['id']}" in line for line in ran.ours())
    assert not (ran.folder / "cases" / ".spool").exists()


def test_the_written_script_obeys_the_contract_and_needs_torch_alone(raised, tmp_path):
    script = raised.folder / "cases" / raised.case["id"] / "original.py"
    assert "torchsleuth" not in [
        line.split()[1].split(".")[0]
        for line in script.read_text().splitlines()
        if line.startswith(("import ", "from "))
    ]
    answers = {}
    for fault in (RAISES, "aten.cos.default:raise", None):
        done = subprocess.run(
            [sys.executable, str(script)],
            cwd=tmp_path,
            env=environment(tmp_path, fault),
            capture_output=True,
            text=True,
        )
        answers[fault] = (done.returncode, done.stdout.splitlines()[-1].split(":")[0])
    assert answers == {
        RAISES: (1, "REPRODUCED"),
        "aten.cos.default:raise": (2, "DIFFERENT FAILURE"),
        None: (0, "NOT REPRODUCED"),
    }
    # a script that cannot be set up is no reproduction
    broken = script.with_name("broken.py")
    broken.write_text(
        script.read_text().replace("torch.ops.aten.sin.default", "torch.ops.nowhere.sin.default")
    )
    done = subprocess.run(
        [sys.executable, str(broken)], env=environment(tmp_path), capture_output=True, text=True
    )
    assert done.returncode == 3 and done.stdout.splitlines()[-1].startswith("CANNOT TELL: ")


def test_a_run_time_error_in_the_lazily_compiled_backward_is_put_to_the_backward_graph(tmp_path):
    # the derivative of sin is cos of the input times the gradient: only the backward multiplies here
    source = THREE_LAYERS.replace(".cos()", "")
    ran = run_watched(tmp_path, source, fault="aten.cos.default:run_raise")
    case = ran.case
    assert (case["kind"], case["phase"], case["direction"]) == ("runtime_error", "run", "backward")
    assert "forward done" in ran.stdout and "backward done" not in ran.stdout
    assert "program.py:11" in case["graph"]["source_lines"]
    assert verified(case)
    assert case["triage"] is None  # eager does not fail: not the program's own bug


@pytest.mark.parametrize(
    ("act", "phase", "status", "how"),
    [
        ("segv", "compile", 128 + signal.SIGSEGV, "SIGSEGV"),
        ("run_abort", "run", 128 + signal.SIGABRT, "SIGABRT"),
        ("run_exit", "run", 7, "exit 7"),
    ],
)
def test_a_crash_leaves_the_same_kind_of_case_as_an_exception(tmp_path, act, phase, status, how):
    ran = run_watched(tmp_path, THREE_LAYERS, fault=f"aten.sin.default:{act}")
    case = ran.case
    assert ran.status == status
    assert (case["kind"], case["phase"], case["signature"]["signal"]) == ("crash", phase, how)
    assert verified(case)
    if how != "exit 7":
        assert "Fatal Python error" in ran.file("traceback.txt")


def test_a_process_killed_from_outside_in_the_middle_of_a_compile_is_a_crash_as_an_oom_kill_is(tmp_path):
    source = """
        import os, signal, torch
        import torch._inductor.lowering as lowering
        original = lowering.lowerings[torch.ops.aten.sin.default]
        def die(*args, **kwargs):
            os.kill(os.getpid(), signal.SIGKILL)
        lowering.lowerings[torch.ops.aten.sin.default] = die
        torch.compile(lambda x: x.sin() + 1)(torch.ones(3))
    """
    ran = run_watched(tmp_path, source, "--record-only")
    assert ran.status == 137
    assert (ran.case["kind"], ran.case["signature"]["signal"]) == ("crash", "SIGKILL")


@pytest.mark.parametrize("act", ["hang", "native_hang"])
def test_a_hang_becomes_a_case_with_stacks_and_the_program_is_ended(tmp_path, act):
    ran = run_watched(
        tmp_path, THREE_LAYERS, "--timeout", "4", "--record-only", fault=f"aten.sin.default:{act}"
    )
    assert (ran.case["kind"], ran.case["phase"]) == ("hang", "compile")
    assert ran.status in (137, 143)
    assert "faultkit.py" in ran.file("traceback.txt") and "Thread" in ran.file("traceback.txt")


@pytest.mark.slow
def test_a_hang_at_run_time_is_reproduced_under_the_clock_of_verify(tmp_path):
    ran = run_watched(
        tmp_path, THREE_LAYERS, "--timeout", "20", "--record-only", fault="aten.sin.default:run_hang"
    )
    assert (ran.case["kind"], ran.case["phase"]) == ("hang", "run")
    again = sleuth(
        "verify", ran.case["id"], "--times", "1", "--timeout", "20", "--json",
        cwd=tmp_path, env=environment(tmp_path, "aten.sin.default:run_hang"),
    )  # fmt: skip
    assert again.status == 0 and '"answer": "reproduced"' in again.stdout
    healthy = sleuth("verify", ran.case["id"], "--times", "1", cwd=tmp_path, env=environment(tmp_path))
    assert healthy.status == 1


def test_without_a_timeout_a_slow_compile_is_never_ended(tmp_path):
    source = """
        import time, torch
        def slow(gm, inputs):
            time.sleep(3)
            return gm.forward
        print(torch.compile(lambda x: x + 1, backend=slow)(torch.zeros(2)))
    """
    ran = run_watched(tmp_path, source)
    assert (ran.status, ran.cases) == (0, []) and "tensor([1., 1.])" in ran.stdout


def test_a_wrong_result_is_found_in_forward_and_backward_and_the_program_goes_on(tmp_path):
    source = """
        import torch
        torch.manual_seed(0)
        x = torch.randn(8, requires_grad=True)
        y = torch.compile(lambda x: x.sin() * 2)(x)
        y.sum().backward()
        print("went on")
    """
    ran = run_watched(tmp_path, source, "--check-accuracy", fault="aten.cos.default:wrong")
    case = ran.case  # cos is in the backward only
    assert ran.status == 3 and ran.stdout == "went on\n"
    assert (case["kind"], case["phase"], case["direction"]) == ("accuracy", "run", "backward")
    assert verified(case)


def test_a_wrong_result_from_a_warm_cache_is_found(tmp_path):
    source = "import torch\nprint(torch.compile(lambda x: x.sin() * 2)(torch.ones(8)).sum())\n"
    run_bare(tmp_path, source, fault="aten.sin.default:wrong")  # fills the caches with the wrong kernel
    ran = run_watched(tmp_path, source, "--check-accuracy", "--record-only", fault="aten.sin.default:wrong")
    assert ran.case["kind"] == "accuracy"
    assert ran.case["signature"]["outputs"] == ["outputs[0]"]
