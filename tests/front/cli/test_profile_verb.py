"""`torchsleuth profile` on real programs: whose compile time, in which phase, and nothing of it twice."""

import json

import pytest

import torchsleuth
from program_runs import environment, sleuth, write_program

BREAKS_AND_RECOMPILES = """
    import torch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            y = self.linear(x).relu()
            torch._dynamo.graph_break()
            return (y * 2).sum()

    @torch.compile(backend="aot_eager")
    def scale(x, n):
        return x * n

    torch.compile(Model(), backend="aot_eager")(torch.randn(3, 4)).backward()
    for n in range(2):
        scale(torch.randn(3), n)
    print("the program's own words")
"""


def profiled(folder, source, *options):
    ran = sleuth("profile", "--json", *options, write_program(folder, source), cwd=folder)
    return ran, json.loads(ran.stdout)


def test_time_is_told_by_phase_by_graph_and_by_function_of_the_user(tmp_path):
    ran, told = profiled(tmp_path, BREAKS_AND_RECOMPILES)
    assert ran.status == 0 and "the program's own words" in ran.stderr
    names = {row["name"]: row for row in told["by_function"]}
    forward = next(row for name, row in names.items() if name.startswith("Model.forward (program.py:9"))
    scale = next(row for name, row in names.items() if name.startswith("scale (program.py:"))
    # Two frames and two backwards of the one; two compiles of the other.
    assert (forward["count"], scale["count"]) == (4, 2)
    graphs = {row["name"]: row["function"] for row in told["by_graph"]}
    assert graphs["0/0"] == "Model.forward" and graphs["1/0"] == "Model.forward (rest)"
    assert graphs["0/0 backward"] == "Model.forward" and graphs["2/1"] == "scale"
    phases = {row["name"]: row["seconds"] for row in told["by_phase"]}
    assert {"capture", "guards", "AOTAutograd"} <= set(phases)
    assert sum(phases.values()) == pytest.approx(told["seconds"], rel=1e-3)
    for rows in ("by_graph", "by_function"):
        assert sum(row["seconds"] for row in told[rows]) == pytest.approx(told["seconds"], rel=1e-3)
    folder = tmp_path / "cases" / "runs" / told["run"]
    assert {"times.json", "times.csv", "profile.svg", "profile-trace.json"} <= {
        p.name for p in folder.iterdir()
    }
    trace = json.loads((folder / "profile-trace.json").read_text())["traceEvents"]
    assert {"ph": "X", "name": "bytecode_tracing"}.items() <= next(
        event for event in trace if event["name"] == "bytecode_tracing"
    ).items()


def test_only_one_function_is_looked_at_where_that_is_asked_for(tmp_path):
    _, told = profiled(tmp_path, BREAKS_AND_RECOMPILES, "--only", "scale")
    assert {row["function"] for row in told["by_graph"]} == {"scale"}


def test_a_program_that_compiles_nothing_is_told_where_to_compile(tmp_path):
    ran = sleuth("profile", write_program(tmp_path, "import torch\nprint(torch.ones(2).sum())"), cwd=tmp_path)
    assert ran.status == 0 and "nothing was compiled" in ran.stderr and ran.stdout == "tensor(2.)\n"


def test_what_was_compiled_before_the_program_failed_is_told_and_its_status_is_ours(tmp_path):
    source = """
        import sys, torch
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
        sys.exit(7)
    """
    ran, told = profiled(tmp_path, source)
    assert ran.status == 7 and told["program_status"] == 7 and told["seconds"] > 0


def test_a_program_interrupted_in_the_middle_of_a_compile_tells_what_it_did_until_then(tmp_path):
    source = """
        import os, signal, torch

        def endless(gm, inputs):
            os.kill(os.getpid(), signal.SIGINT)
            while True:
                pass

        torch.compile(lambda x: x + 1, backend=endless)(torch.ones(2))
    """
    ran, told = profiled(tmp_path, source)
    assert ran.status == 130
    assert "backend" in {row["name"] for row in told["by_phase"]} and told["by_graph"][0]["name"] == "0/0"


@pytest.mark.slow
def test_inductors_phases_and_its_caches_are_told(tmp_path):
    source = """
        import torch
        step = torch.compile(lambda x: (x.sin() @ x).softmax(-1))
        step(torch.randn(8, 8))
    """
    env = environment(tmp_path)
    first = json.loads(
        sleuth("profile", "--json", write_program(tmp_path, source), cwd=tmp_path, env=env).stdout
    )
    again = json.loads(sleuth("profile", "--json", tmp_path / "program.py", cwd=tmp_path, env=env).stdout)
    phases = {row["name"] for row in first["by_phase"]}
    assert {"passes", "lowering", "scheduling", "code generation", "C++/Triton", "cache"} <= phases
    assert first["caches"]["fx_graph_cache"] == {"miss": 1}
    assert again["caches"]["autograd_cache"] == {"hit": 1} and again["seconds"] < first["seconds"]


def test_the_same_from_inside_a_program():
    import torch

    with torchsleuth.record_compile_times() as recorded:
        torch.compile(lambda x: x.sin() + 1, backend="aot_eager")(torch.ones(3))
    profile = recorded.profile()
    assert "(test_profile_verb.py:" in profile.by_function[0].name
    assert "AOTAutograd" in {row.name for row in profile.by_phase}
    before = profile.seconds
    torch.compile(lambda x: x.cos() + 1, backend="eager")(torch.ones(3))
    assert recorded.profile().seconds == before  # nothing is listened to after the block

    told = torchsleuth.compile_times("dict", aggregate=True)
    assert told["steps"]["bytecode_tracing"]["phase"] == "capture"
    assert told["steps"]["bytecode_tracing"]["seconds"] > 0
    assert any(frame["file"] == __file__ for frame in told["frames"])
    assert "bytecode_tracing" in torchsleuth.compile_times()
    assert torchsleuth.compile_times("csv").splitlines()[0] == "step,phase,count,seconds"
    with pytest.raises(ValueError, match="'csv'"):
        torchsleuth.compile_times("xml")
