"""Failures before there is a graph: a repro of the user's own functions, made small as Python, and a way around."""

import subprocess
import sys

from program_runs import environment, run_watched

BRANCH = """
    import torch
    from dataclasses import dataclass

    @dataclass
    class Options:
        width: int = 4
        scale: float = 0.5

    class Gate(torch.nn.Module):
        def __init__(self, options):
            super().__init__()
            print("a gate is made")
            self.options = options
            self.lin = torch.nn.Linear(options.width, options.width)
            self.register_buffer("table", torch.zeros(40, 4))

        def forward(self, x, flags=None):
            h = self.lin(x) + self.table.sum()
            if h.mean() > 100:
                h = h * self.options.scale
            return h

    def main():
        model = Gate(Options()).eval()
        step = torch.compile(model, fullgraph=True, backend="eager")
        with torch.no_grad():
            step(torch.randn(8, 4), flags={"a": 1})

    if __name__ == "__main__":
        main()
"""


def test_a_failing_capture_ends_with_a_small_program_and_a_way_around_it(tmp_path):
    ran = run_watched(tmp_path, BRANCH, "--minify", "--budget", "200")
    case = ran.case
    assert (case["kind"], case["no_repro"]) == ("capture_error", None), ran.stderr
    triage = case["triage"]
    assert (triage["component"], triage["user_line"]) == ("dynamo", "program.py:20")
    verified = case["verified"]
    assert (verified["reproduced"], verified["times"], verified["eager_passes"]) == (3, 3, True), ran.stderr
    text = ran.file("repro.py")
    assert "Options" not in text and "table" not in text and "a gate is made" not in text, text
    assert case["minified"]["lines"] <= 40
    best = case["workarounds"][0]
    assert (best["name"], best["verified"], best["program"]) == ("fullgraph=False", True, True)


def test_the_recorded_call_fails_by_itself_and_passes_uncompiled(tmp_path):
    ran = run_watched(tmp_path, BRANCH, "--record-only")
    original = tmp_path / "cases" / ran.case["id"] / "original.py"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "it.py").write_text(original.read_text())  # alone, in another folder
    for more, status, word in (
        ({}, 1, "REPRODUCED: Unsupported"),
        ({"TORCH_COMPILE_DISABLE": "1"}, 0, "NOT REPRODUCED"),
    ):
        again = subprocess.run(
            [sys.executable, "it.py"],
            cwd=elsewhere,
            env=environment(tmp_path, **more),
            capture_output=True,
            text=True,
        )
        assert again.returncode == status and again.stdout.splitlines()[-1].startswith(word), again.stderr
    assert "a gate is made" not in again.stdout


def test_a_call_that_cannot_be_written_says_why(tmp_path):
    program = """
    import torch
    names = {}
    exec("def f(x):\\n    print(x)\\n    return x", names)
    torch.compile(names["f"], fullgraph=True, backend="eager")(torch.ones(1))
    """
    ran = run_watched(tmp_path, program, "--record-only")
    assert "could not be written as a script" in ran.case["no_repro"], ran.case
