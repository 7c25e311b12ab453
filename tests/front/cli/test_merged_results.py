"""A backend that gives one tensor where eager gives several: found where it changes what a call leaves behind."""

import subprocess
import sys

import pytest

from program_runs import run_bare, run_watched
from torchsleuth.core.processes.sealed import why_not_sealable

pytestmark = pytest.mark.skipif(
    why_not_sealable() is not None, reason="needs processes that can be sealed off"
)

# A backend as simple as can be with the fault that Inductor has where no gradients are needed.
MERGES = '''
import torch

def merging(graph, inputs):
    """Gives the first tensor for every other one that shows all of the same memory."""
    def run(*args):
        firsts = {}
        return [firsts.setdefault((t.data_ptr(), t.shape), t) for t in graph(*args)]
    return run

compiled = torch.compile(backend=merging)

@compiled
def grown(x):
    base = x + 1
    flat = base.view(-1)
    torch._dynamo.graph_break()
    flat.resize_(12)
    return base + 1

@compiled
def turned(x):
    base = x + 1
    other = base.detach()
    torch._dynamo.graph_break()
    other.unsqueeze_(0)
    return base.shape, other

@compiled
def named(x):
    base = x * 2
    other = base[:]
    torch._dynamo.graph_break()
    other.tag = "other"
    return hasattr(base, "tag")

@compiled
def harmless(x):
    base = x * 2
    other = base.view(-1)
    torch._dynamo.graph_break()
    other.add_(1)
    return base, other

with torch.no_grad():
    for function in (grown, turned, named, harmless):
        function(torch.zeros(2))
print("done")
'''

SAID = {
    "grown": (
        "program.py:16",
        "result is a Tensor, float32 tensor of shape (2,) in eager and a Tensor, float32 ",
    ),
    "turned": (
        "program.py:24",
        "result[0] is a torch.Size of [2] in eager and a torch.Size of [1, 2] when compiled",
    ),
    "named": ("program.py:32", "result is a bool False in eager and a bool True when compiled"),
}


def test_merged_results_that_change_a_call_become_cases(tmp_path):
    bare = run_bare(tmp_path, MERGES)
    ran = run_watched(tmp_path, MERGES, "--check-accuracy", "--record-only")
    assert (ran.status, ran.stdout) == (3, bare.stdout), ran.stderr
    cases = {case["triage"]["function"]: case for case in ran.cases}
    assert cases.keys() == SAID.keys()
    for function, (line, said) in SAID.items():
        case = cases[function]
        assert (case["kind"], case["phase"], case["triage"]["component"]) == ("accuracy", "run", "backend")
        assert case["triage"]["user_line"] == line
        assert said in case["triage"]["detail"]
        assert "one tensor is given where eager gives several" in case["triage"]["detail"]


@pytest.mark.slow
def test_inductors_merged_results_end_with_a_script_and_a_workaround(tmp_path):
    program = """
    import torch

    def stretched(x):
        base = torch.exp(x) + 1
        row = base.view(-1)
        torch._dynamo.graph_break()
        row.unsqueeze_(0)
        return base + 1

    with torch.no_grad():
        torch.compile(stretched)(torch.zeros(3))
    """
    ran = run_watched(tmp_path, program, "--check-accuracy", "--minify", "--budget", "240")
    case = ran.case
    assert (case["kind"], case["triage"]["component"]) == ("accuracy", "inductor"), ran.stderr
    assert [rung["answer"] for rung in case["triage"]["rungs"]] == ["passes"]
    assert case["triage"]["user_line"] == "program.py:6"
    assert (case["verified"]["times"], case["verified"]["reproduced"]) == (3, 3)
    assert case["workarounds"][0]["verified"]
    script = [sys.executable, str(tmp_path / "cases" / case["id"] / "repro.py")]
    ended = subprocess.run(script, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout.splitlines()[-1][:11]) == (1, "REPRODUCED:"), ended
