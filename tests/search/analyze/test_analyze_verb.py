"""`torchsleuth analyze`, as a person types it, on a program with a wrong kernel."""

import json

import pytest

from program_runs import environment, sleuth, write_program

PROGRAM = """
    import torch

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.norm = torch.nn.Linear(16, 16), torch.nn.LayerNorm(16)

        def forward(self, x):
            return x + self.norm(self.lin(x)).sin()

    torch.manual_seed(0)
    model = torch.nn.Sequential(Block(), Block())
    with torch.no_grad():
        torch.compile(model)(torch.randn(8, 16))
"""


@pytest.mark.slow
def test_a_wrong_kernel_is_named_and_shown_again(tmp_path):
    env = environment(tmp_path, "aten.sin.default:wrong")
    program = write_program(tmp_path, PROGRAM)
    sleuth("run", "--check-accuracy", "--record-only", program, cwd=tmp_path, env=env)
    ran = sleuth("analyze", "--json", "--save", cwd=tmp_path, env=env)
    assert ran.status == 0, ran.stderr
    found = json.loads(ran.stdout)
    culprit = found["culprit"]
    assert (culprit["node"], culprit["user_line"], culprit["module"]) == ("sin", "program.py:10", "0")
    assert culprit["confirmed"] and culprit["recovers"] and len(culprit["also"]) == 1
    assert ran.case["analysis"]["node"] == "sin"
    assert ran.file("analysis.svg").startswith("<svg")
    kept = json.loads(ran.file("values/index.json"))
    assert set(kept) == {value["node"] for value in found["values"]}
    healthy = environment(tmp_path)
    looked = sleuth("analyze", "last", "--look", cwd=tmp_path, env=healthy)
    assert looked.status == 0 and "program.py:10" in looked.stdout and "furthest off" in looked.stdout
    shown = sleuth("show", "last", cwd=tmp_path, env=healthy)
    assert "begins at" in shown.stdout
    quick = sleuth(
        "analyze", "--json", "--no-inside", "--no-substitution", "--no-determinism", cwd=tmp_path, env=env
    )
    assert json.loads(quick.stdout)["culprit"]["seen_at"] == culprit["seen_at"]
    assert set(json.loads(quick.stdout)["seconds"]) == {"accumulated", "local"}


def test_there_is_nothing_to_look_at_before_an_analysis(tmp_path):
    program = write_program(tmp_path, PROGRAM)
    ran = sleuth("analyze", "--look", program, cwd=tmp_path, env=environment(tmp_path))
    assert ran.status == 2 and len(ran.ours()) == 1
