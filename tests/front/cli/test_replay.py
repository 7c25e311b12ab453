"""One recorded frame run again: in a fresh process, to the same error, and only where somebody asks for it."""

import json
import subprocess
import sys

import pytest

from made import make
from program_runs import environment, sleuth, write_program
from torchsleuth.core.cases.folder import write_case
from torchsleuth.front.cli.main import main

RECORDS = """
    import torch, torchsleuth

    LIMIT = 3.0
    print("the program around it")

    def step(x, scale):
        print("the frame")
        return x * scale if x.sum() > LIMIT else x

    with torchsleuth.record_frame(cases="cases") as recorded:
        try:
            torch.compile(step, backend="eager", fullgraph=True)(torch.ones(3), scale=2)
        except Exception as error:
            print("it goes its way:", type(error).__name__)
    print(torchsleuth.replay(recorded.cases[0]).answer)
"""


def test_a_frame_that_was_recorded_is_run_again_without_the_program_around_it(tmp_path):
    write_program(tmp_path, RECORDS)
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
    )
    lines = done.stdout.splitlines()
    assert lines == ["the program around it", "it goes its way: Unsupported", "Answer.FAILS"], done.stderr
    again = sleuth("replay", "last", "--json", cwd=tmp_path)
    told = json.loads(again.stdout)
    assert (again.status, told["answer"]) == (0, "fails") and "Unsupported" in told["summary"]
    assert "the program around it" not in again.stderr and "in step" in again.stderr
    eager = sleuth("replay", "last", "--eager", cwd=tmp_path)
    assert eager.status == 0 and eager.stdout.startswith("the frame\nnothing failed without the compiler")


@pytest.fixture
def foreign(tmp_path):
    """A case of somebody else's, whose frame leaves a mark when it is run."""
    program = f"import pathlib\npathlib.Path({str(tmp_path / 'executed')!r}).touch()\n"
    return write_case(tmp_path / "cases", make(), {"program.py": program})


def test_a_frame_of_somebody_else_is_not_run_unless_agreed_to(foreign, tmp_path, capsys):
    (foreign.path / ".made-here").unlink()
    status = main(["replay", "last", "--cases", str(tmp_path / "cases")])
    said = capsys.readouterr().err
    assert status == 2 and "was not made here" in said and "--yes" in said
    assert not (tmp_path / "executed").exists()


def test_a_case_without_a_frame_says_what_it_has_instead(tmp_path, capsys):
    write_case(tmp_path / "cases", make(), {"graph.py": "x = 1\n"})
    status = main(["replay", "last", "--yes", "--cases", str(tmp_path / "cases")])
    assert status == 2 and "holds no recorded frame" in capsys.readouterr().err
