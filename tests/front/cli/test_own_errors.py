"""Programs that end with an error of their own: whether the compiler is behind it is tried, not guessed."""

import subprocess
import sys

import pytest
import torch

from program_runs import run_bare, run_watched
from torchsleuth.core.processes.sealed import why_not_sealable

on_2_13 = pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="the bug is one of torch 2.13")

LOST = """
import torch

@torch.compile(backend="eager")
def scan(x):
    def steps():
        yield x + 1
        return 7.0
    return steps()

def ending(steps):
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value

print(ending(scan(torch.ones(2))) + 1)
"""


@on_2_13
@pytest.mark.skipif(why_not_sealable() is not None, reason="needs processes that can be sealed off")
def test_the_call_behind_an_error_of_the_program_is_found(tmp_path):
    ran = run_watched(tmp_path, LOST)
    assert ran.status == 1
    said = "\n".join(ran.ours())
    assert "ended with an error of its own (TypeError: unsupported operand" in said
    assert "with nothing compiled the program passes" in said
    case = ran.case
    assert (case["kind"], case["triage"]["component"]) == ("accuracy", "dynamo")
    assert case["triage"]["function"] == "scan"
    assert "the return value of result is a float 7.0 in eager" in case["triage"]["detail"]


def test_an_error_without_the_compiler_is_not_the_compilers(tmp_path):
    program = """
    import torch
    out = torch.compile(torch.sin, backend="eager")(torch.ones(2))
    def own(x):
        return x + 1
    torch.compile(own, backend="eager")(out)
    {}["nothing there"]
    """
    ran = run_watched(tmp_path, program)
    assert (ran.status, ran.cases) == (1, [])
    assert ran.ours()[-2].endswith("with nothing compiled it fails, too: the error is not the compiler's")


SENT = """
import sys, torch

@torch.compile(backend="eager")
def healthy(x):
    return x * 2

@torch.compile(backend="eager")
def scan(x):
    def steps():
        factor = yield x + 1
        yield x * (factor or 2.0)
    return steps()

x = healthy(torch.ones(2))
steps = scan(x)
next(steps)
print(steps.send(float(sys.argv[1])))
"""


@on_2_13
@pytest.mark.slow
def test_where_no_call_differs_the_program_itself_is_the_case(tmp_path):
    ran = run_watched(tmp_path, SENT, "--minify", "--budget", "220", arguments=("3",))
    case = ran.case
    assert (ran.status, case["kind"], case["triage"]["component"]) == (1, "runtime_error", "dynamo"), (
        ran.stderr
    )
    assert case["triage"]["user_line"] == "program.py:18"
    assert "AttributeError" in case["signature"]["summary"]
    assert (case["verified"]["times"], case["verified"]["reproduced"]) == (3, 3), ran.stderr
    (tried,) = [each for each in case["workarounds"] if each["verified"]]
    assert tried["how"] == "@torch.compiler.disable  # above `def steps` in program.py:10"
    script = [sys.executable, str(tmp_path / "cases" / case["id"] / "repro.py")]
    ended = subprocess.run(script, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout.splitlines()[-1][:11]) == (1, "REPRODUCED:"), ended


GIVEN_UP = """
import torch
from torch._dynamo import convert_frame

compile_frame = convert_frame._compile
left = []


def leave_something(*args, **kwargs):
    try:
        return compile_frame(*args, **kwargs)
    except Exception:
        left.append(torch._C._AutoDispatchBelowAutograd())
        raise


convert_frame._compile = leave_something


class Here:
    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False


def slope(x):
    with Here():
        torch._dynamo.graph_break()
        loss = (x * x).sum()
    loss.backward()
    return x.grad


print(torch.compile(slope, backend="eager")(torch.ones(3, requires_grad=True)))
"""
LEFT = "left the dispatch keys of the thread changed"


def test_a_function_that_dynamo_gave_up_is_told_with_its_reason(tmp_path):
    healthy = GIVEN_UP.replace("convert_frame._compile = leave_something", "")
    ran = run_watched(tmp_path, healthy)
    assert (ran.status, ran.cases) == (0, [])
    (said,) = ran.ours()
    assert "nothing was compiled: Dynamo gave up `slope`" in said and "which ran uncompiled" in said
    assert "Call to `torch._dynamo.graph_break()`" in said and "given no function" not in said


def test_an_error_after_a_capture_that_left_something_behind_is_the_compilers(tmp_path):
    ran = run_watched(tmp_path, GIVEN_UP, "--record-only")
    assert ran.status == 1 and "does not require grad" in ran.stderr
    assert "Dynamo gave up `slope`" in ran.ours()[-2] and LEFT in ran.ours()[-1]


@pytest.mark.slow
def test_a_capture_that_left_something_behind_is_a_case_of_dynamos(tmp_path):
    ran = run_watched(tmp_path, GIVEN_UP, "--minify", "--budget", "200")
    case = ran.case
    assert (case["kind"], case["triage"]["component"]) == ("runtime_error", "dynamo")
    assert LEFT in case["triage"]["detail"] and "`slope`" in case["triage"]["detail"]
    assert case["workarounds"][0]["name"] == "function slope eager"


def test_what_a_failed_capture_of_torchs_leaves_behind_is_not_mended_by_the_watch(tmp_path):
    program = """
    import torch
    slope = lambda x, t, q: torch.func.jvp(lambda a: torch.quantile(a, q, dim=0), (x,), (t,))
    x, t, q = torch.randn(8, 3), torch.randn(8, 3), torch.tensor([0.25, 0.5])
    slope(x, t, q)
    torch.compile(slope)(x, t, q)
    """
    bare = run_bare(tmp_path, program)
    ran = run_watched(tmp_path, program, "--record-only")
    assert bare.returncode == 1 and ran.status in (1, 3)
    assert bare.stderr.splitlines()[-1].split(":")[0] in ran.stderr
