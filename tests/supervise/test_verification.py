"""Which script becomes repro.py: the most readable that fails; with no time left the exact one, and that is run, too."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cases"))

from made import make

from torchsleuth.cases.answer import Answer
from torchsleuth.cases.folder import write_case
from torchsleuth.supervise.scripts import ScriptRun
from torchsleuth.supervise.verification import ScriptToVerify, verified_repro

SCRIPTS = [
    ScriptToVerify("function"),
    ScriptToVerify("operators"),
    ScriptToVerify("exact", needs_inputs=True),
]


class Runner:
    """Answers by the text of the script, and notes what was run where."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, str]] = []

    def run_times(self, script, expected, times, *, at_once, phase_seconds, deadline):
        text = script.read_text()
        self.ran.append((text, script.name))
        assert deadline is None or deadline > time.monotonic() + 10
        return [ScriptRun(Answer(text), "", 0.0)] * times


@pytest.fixture
def folder(tmp_path):
    return write_case(tmp_path, make(), {"repro.py": "best so far"})


def verified(folder, answers, deadline=None):
    (folder.path / "checkpoints").mkdir()
    for script, answer in zip(SCRIPTS, answers):
        (folder.path / script.name).write_text(answer)
    runner = Runner()
    return verified_repro(folder, SCRIPTS, runner, times=3, deadline=deadline), runner


def test_the_first_that_fails_the_same_way_is_taken(folder):
    found, runner = verified(folder, ["passes", "fails", "fails"])
    assert (found.script.form, found.holds, found.reproduced) == ("operators", True, 3)
    assert [name for _, name in runner.ran] == ["function.py", "operators.py"]
    assert folder.file("repro.py").read_text() == "fails"


def test_one_that_needs_the_kept_inputs_is_run_where_they_lie(folder):
    found, runner = verified(folder, ["passes", "fails differently", "fails"])
    assert found.script.form == "exact" and runner.ran[-1][1] == "repro.py"


def test_with_no_time_left_the_exact_one_is_still_run(folder):
    found, runner = verified(folder, ["passes", "fails", "fails"], deadline=time.monotonic() - 1)
    assert [name for _, name in runner.ran] == ["function.py", "repro.py"]
    assert found.script.form == "exact" and found.reproduced == 3


def test_one_that_does_not_hold_is_told_so(folder):
    found, _ = verified(folder, ["passes", "passes", "passes"])
    assert not found.holds and found.reproduced == 0 and len(found.runs) == 3
