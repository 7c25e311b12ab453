"""Failures before there is a graph: a repro of the user's own functions, made small as Python, and a way around."""

import subprocess
import sys

import pytest
import torch

from program_runs import environment, run_watched, sleuth
from torchsleuth.core.processes.sealed import why_not_sealable

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
    assert (best["name"], best["verified"], best["program"]) == ("torch.where in place of if", True, True)
    assert best["how"].splitlines() == [
        "# program.py:20-21, in place of",
        "#     if h.mean() > 100:",
        "#         h = h * self.options.scale",
        "h = torch.where(h.mean() > 100, h * self.options.scale, h)",
    ]


def test_the_recorded_call_fails_by_itself_and_passes_uncompiled(tmp_path):
    ran = run_watched(tmp_path, BRANCH, "--record-only")
    line = int(ran.case["triage"]["user_line"].rpartition(":")[2])
    assert ran.case["triage"]["code"] == (tmp_path / "program.py").read_text().splitlines()[line - 1].strip()
    assert ran.case["triage"]["labels"] == ["oncall: pt2", "module: dynamo"]
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


def test_a_transform_of_torch_is_written_as_the_transform_and_the_line_is_the_one_that_calls_it(tmp_path):
    program = """
    import torch

    batched = torch.compile(torch.vmap(torch.nonzero, in_dims=1), fullgraph=True, backend="eager")
    batched(torch.ones(2, 3))
    """
    ran = run_watched(tmp_path, program, "--record-only")
    assert ran.case["triage"]["user_line"] == "program.py:5", ran.case["triage"]
    assert "torch.compile(torch.func.vmap(torch.nonzero, in_dims=1)" in ran.file("program.py")


def test_a_call_that_cannot_be_written_says_why(tmp_path):
    program = """
    import torch
    names = {}
    exec("def f(x):\\n    print(x)\\n    return x", names)
    torch.compile(names["f"], fullgraph=True, backend="eager")(torch.ones(1))
    """
    ran = run_watched(tmp_path, program, "--record-only")
    assert "could not be written as a script" in ran.case["no_repro"], ran.case


WRONG = """
    import torch

    SCALE = 3

    class Reader:
        def __init__(self):
            print("a reader is made")
            self.offset = 1

        def read(self, x):
            y = x.sin() * SCALE + self.offset
            return y.sum(), torch.Tensor(x.size()).shape

    if __name__ == "__main__":
        torch.compile(Reader().read, backend="eager")(torch.full((1, 1), 6.0))
"""


@pytest.mark.slow
@pytest.mark.skipif(why_not_sealable() is not None, reason="needs processes that can be sealed off")
@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="the bug is one of torch 2.13")
def test_a_wrong_capture_ends_with_a_small_function_that_differs_from_eager(tmp_path):
    ran = run_watched(tmp_path, WRONG, "--minify", "--check-accuracy", "--budget", "300")
    case = ran.case
    assert (case["kind"], case["phase"], case["no_repro"]) == ("accuracy", "capture", None), ran.stderr
    verified = case["verified"]
    assert (verified["reproduced"], verified["times"], verified["eager_passes"]) == (3, 3, True), ran.stderr
    text = ran.file("repro.py")
    assert "wrong = [result[1]]" in text and "torch.Tensor(" in text
    assert not any(word in text for word in ("SCALE", "sin", "class", "a reader is made")), text
    assert case["minified"]["program_lines"] <= 8
    assert case["workarounds"][0]["program"]


LIMIT = """
    import torch

    torch._dynamo.config.recompile_limit = 3

    def step(x, n):
        return x * n

    compiled = torch.compile(step, fullgraph=True, dynamic=False, backend="eager")
    for size in range(2, 9):
        compiled(torch.ones(size), n=2)
"""


def test_one_compile_too_many_is_recorded_with_the_calls_before_it(tmp_path):
    ran = run_watched(tmp_path, LIMIT, "--record-only")
    program = ran.file("program.py")
    assert "torch._dynamo.config.recompile_limit = 1" in program and program.count("compiled(") == 4
    again = sleuth("replay", "last", cwd=tmp_path)
    assert again.status == 0 and "the same failure" in again.stdout, again.stderr


NOTEBOOK = """
    import linecache, sys, types, torch

    def run_cell(number, text):  # as a notebook runs its cells: in one namespace, each known to Python as a file
        name = f"<cell {number}>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), cells.__dict__)

    sys.modules["__main__"] = cells = types.ModuleType("__main__")
    run_cell(1, "import torch\\nclass Scale:\\n    def __call__(self, x):\\n        return x * self.by")
    run_cell(2, "scale = Scale()\\nscale.by = 2")
    run_cell(3, "def step(x):\\n    print(x)\\n    return scale(x)")
    run_cell(4, "torch.compile(step, fullgraph=True, backend='eager')(torch.ones(1))")
"""


def test_the_cells_of_a_notebook_are_source(tmp_path):
    ran = run_watched(tmp_path, NOTEBOOK, "--record-only")
    assert ran.case["no_repro"] is None, ran.case["no_repro"]
    program = ran.file("program.py")
    assert "class Scale" in program and "def step" in program and ".by = 2" in program, program


def test_the_program_is_not_blamed_for_a_shape_that_only_capture_believes_in(tmp_path):
    source = """
        import torch

        @torch.library.custom_op("mylib::halve", mutates_args=())
        def halve(x: torch.Tensor) -> torch.Tensor:
            return x[: x.shape[0] // 2].clone()

        @halve.register_fake
        def _(x):
            return torch.empty_like(x)

        @torch.compile(fullgraph=True)
        def model(x, y):
            return halve(x.sin()) + y

        try:
            model(torch.ones(8), torch.ones(4))
        except Exception as error:
            print(type(error).__name__)
    """
    ran = run_watched(tmp_path, source)
    triage = ran.case["triage"]
    assert (triage["component"], triage["user_line"]) == ("dynamo", "program.py:14"), ran.stderr
    assert "without the compiler the call passes" in triage["detail"]
