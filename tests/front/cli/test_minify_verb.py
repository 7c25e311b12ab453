"""`run` and `minify` hand over something a person would have written by hand."""

import json
import subprocess
import sys

import pytest

from program_runs import environment, run_watched, sleuth

DEEP = """
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(6))

        def forward(self, x):
            for layer in self.layers:
                x = torch.relu(layer(x)).cos()
            return torch.atan(x).sum()

    torch.compile(Net())(torch.randn(4, 8))
"""


@pytest.mark.slow
def test_run_ends_with_a_minimal_verified_script(tmp_path):
    fault = "aten.atan.default:raise"
    ran = run_watched(tmp_path, DEEP, "--minify", fault=fault)
    case = ran.case
    assert case["minified"]["calls"] == 1, (case, ran.stderr)
    assert case["verified"]["times"] == case["verified"]["reproduced"] == 3, ran.stderr
    script = tmp_path / "cases" / case["id"] / "repro.py"
    text = script.read_text()
    assert "torch.compile" in text and "import torchsleuth" not in text and len(text.splitlines()) <= 40
    again = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment(tmp_path, fault),
        capture_output=True,
        text=True,
    )
    assert again.returncode == 1 and again.stdout.splitlines()[-1].startswith("REPRODUCED: ")


@pytest.mark.slow
def test_a_case_that_no_longer_fails_is_said_in_one_sentence(tmp_path):
    ran = run_watched(tmp_path, DEEP, "--record-only", fault="aten.atan.default:raise")
    healthy = sleuth("minify", ran.case["id"], "--json", cwd=tmp_path, env=environment(tmp_path))
    assert healthy.status == 2 and healthy.stdout == "", healthy.stderr
    said = [line for line in healthy.stderr.splitlines() if line.startswith("torchsleuth:")]
    assert "fail" in said[-1]


@pytest.mark.slow
def test_a_crash_is_minified_in_isolation(tmp_path):
    ran = run_watched(tmp_path, DEEP, "--record-only", fault="aten.atan.default:segv")
    env = environment(tmp_path, "aten.atan.default:segv")
    done = sleuth("minify", ran.case["id"], "--json", cwd=tmp_path, env=env)
    assert done.status == 0, done.stderr
    assert json.loads(done.stdout)["minified"]["calls"] == 1


@pytest.mark.parametrize("wanted", ["nine", "0", "-1", "ray:/x"])
def test_workers_that_make_no_sense_are_told_before_anything_is_started(tmp_path, wanted):
    told = sleuth("minify", "last", "--workers", wanted, cwd=tmp_path)
    assert told.status == 2 and "number from 1 on" in told.stderr
