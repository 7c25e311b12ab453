"""Which script becomes repro.py: the most readable that fails; with no time left the exact one, and that is run, too."""

from __future__ import annotations

import contextlib
import time

import pytest

from made import make
from torchsleuth.core.cases.folder import write_case
from torchsleuth.core.criteria import Answer
from torchsleuth.core.protocol.steps import ScriptToVerify, Verification
from torchsleuth.front.supervise.case_at_work import CaseAtWork, Processes
from torchsleuth.front.supervise.scripts import ScriptRun
from torchsleuth.front.supervise.settle import verified_repro

SCRIPTS = [
    ScriptToVerify("function"),
    ScriptToVerify("operators"),
    ScriptToVerify("nodes"),
    ScriptToVerify("exact", needs_inputs=True),
]


class Runner:
    """Answers by the text of the script, "with the compiler / without it", and notes what was run where."""

    def __init__(self, longest_alone: float = 0.0) -> None:
        self.ran: list[tuple[str, str]] = []
        self.longest_alone = longest_alone
        self.longest = 0.0
        self.seconds: float | None = None

    def run_times(self, script, expected, times, *, at_once, phase_seconds, deadline):
        text = script.read_text()
        self.ran += [(text, script.name)] * times
        self.seconds = None if deadline is None else deadline - time.monotonic()
        assert self.seconds is None or self.seconds > 10
        return [ScriptRun(Answer(text.partition(" / ")[0]), "", 0.0)] * times

    def stopped_with_us(self):
        return contextlib.nullcontext()

    def run(self, script, expected, *, arguments, phase_seconds, deadline, compiles):
        assert not compiles and not arguments
        return ScriptRun(Answer(script.read_text().partition(" / ")[2] or "passes"), "no such size", 0.0)


@pytest.fixture
def folder(tmp_path):
    return write_case(tmp_path, make(), {"repro.py": "best so far"})


def verified(folder, answers, deadline=None, scripts=SCRIPTS, longest_alone=0.0, longest=0.0, **how):
    (folder.path / "checkpoints").mkdir()
    for script, answer in zip(scripts, answers):
        (folder.path / script.name).write_text(answer)
    runner = Runner(longest_alone)
    runner.longest = longest
    case = CaseAtWork(folder, Processes(runner), float("inf") if deadline is None else deadline)
    return verified_repro(case, Verification(tuple(scripts), times=3, **how)), runner


def test_the_first_that_fails_the_same_way_is_taken_and_one_that_does_not_is_run_once(folder):
    found, runner = verified(folder, ["passes", "fails", "fails", "fails"])
    assert (found.script.form, found.holds, found.reproduced) == ("operators", True, 3)
    assert [name for _, name in runner.ran] == ["function.py", *["operators.py"] * 3]
    assert folder.file("repro.py").read_text() == "fails"


def test_one_that_needs_the_kept_inputs_is_run_where_they_lie(folder):
    found, runner = verified(folder, ["passes", "fails differently", "passes", "fails"])
    assert found.script.form == "exact" and runner.ran[-1][1] == "repro.py"


def test_with_no_time_left_the_most_exact_small_one_is_still_run(folder):
    answers = ["passes", "fails", "fails", "fails"]
    found, runner = verified(folder, answers, deadline=time.monotonic() - 1)
    assert list(dict.fromkeys(name for _, name in runner.ran)) == ["function.py", "nodes.py"]
    assert found.script.form == "nodes" and found.reproduced == 3


def test_on_a_machine_where_an_interpreter_takes_a_minute_to_start_each_run_gets_its_minute(folder):
    _, runner = verified(folder, ["fails"] * 4, deadline=time.monotonic() - 1, longest_alone=60.0)
    assert runner.seconds == pytest.approx(90, abs=5)


@pytest.mark.parametrize(("longest", "seconds"), [(5, 20), (30, 45), (400, 60)])
def test_on_a_busy_machine_the_last_script_gets_what_the_runs_before_it_took(folder, longest, seconds):
    _, runner = verified(folder, ["fails"] * 4, deadline=time.monotonic() - 1, longest=longest)
    assert runner.seconds == pytest.approx(seconds, abs=5)


def test_where_a_run_could_tell_nothing_for_want_of_time_the_most_readable_one_stays(folder):
    answers = ["cannot tell", "fails", "fails", "fails"]
    found, runner = verified(folder, answers, deadline=time.monotonic() - 1)
    assert found.script.form == "function" and not found.holds
    assert [name for _, name in runner.ran] == ["function.py"]


def test_one_that_does_not_hold_is_told_so(folder):
    found, _ = verified(folder, ["passes"] * 4)
    assert not found.holds and found.reproduced == 0


def test_one_that_fails_without_the_compiler_too_is_passed_over(folder):
    found, _ = verified(folder, ["fails / fails", *["fails / passes"] * 3])
    assert (found.script.form, found.holds) == ("operators", True)
    assert found.to_case().eager_passes is True
    assert folder.file("repro.py").read_text() == "fails / passes"


def test_where_all_fail_without_the_compiler_the_first_is_kept_and_does_not_count_as_verified(folder):
    found, runner = verified(folder, ["fails / fails", *["fails / fails differently"] * 3])
    assert [name for _, name in runner.ran] == ["function.py"] * 3
    assert folder.file("repro.py").read_text() == "fails / fails"
    case = found.to_case()
    assert (case.reproduced, case.same_signature, case.eager_passes) == (3, False, False)
    assert "fails without the compiler, too (no such size)" in case.error


def test_of_an_original_that_fails_without_the_compiler_nothing_more_is_asked(folder):
    found, _ = verified(folder, ["fails / fails", *["fails"] * 3], in_eager=False)
    assert found.holds and found.to_case().error is None


WITH_RANDOM = [
    ScriptToVerify(form, random=random) for form in ("function", "nodes") for random in (False, True)
]


@pytest.mark.parametrize("late", [False, True])
def test_random_inputs_stand_in_where_eager_refuses_plain_ones(folder, late):
    answers = ["fails / fails differently", "fails / passes"] * 2
    deadline = time.monotonic() - 1 if late else None
    found, _ = verified(folder, answers, deadline, scripts=WITH_RANDOM)
    assert (found.script.form, found.script.random) == ("nodes" if late else "function", True)
    assert found.holds and folder.file("repro.py").read_text() == "fails / passes"


def test_a_wrong_result_that_other_numbers_do_not_show_is_shown_by_those_of_the_search(tmp_path):
    folder = write_case(tmp_path, make(kind="accuracy"), {})
    found, runner = verified(folder, ["passes", "fails / passes"] * 2, scripts=WITH_RANDOM)
    assert (found.script.form, found.script.random, found.holds) == ("function", True, True)
    assert [name for _, name in runner.ran] == ["function.py", *["function_random.py"] * 3]


def test_random_inputs_are_not_tried_where_eager_takes_plain_ones(folder):
    _, runner = verified(folder, ["passes"] * 4, scripts=WITH_RANDOM)
    assert [name for _, name in runner.ran] == ["function.py", "nodes.py"]
