"""Workarounds tried with a fake compiler: what counts as verified, what is told, and in which order."""

import time
from types import SimpleNamespace

import pytest
import torch

from made import make
from made_graphs import aten, traced
from torchsleuth.core.cases.folder import open_case, write_case
from torchsleuth.core.cases.model import Triage, Verified
from torchsleuth.core.cases.record import CompileSettings, GraphRecord
from torchsleuth.core.change_table import BACKEND, BREAK, MODULE, OPERATOR, SETTING
from torchsleuth.core.changes import Change
from torchsleuth.core.protocol.trials import Outcome, Question, Seen
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.search.blame.runner import Runner
from torchsleuth.search.cure.attempts import NO_TIME, NotApplicable, Original, Tried, parts_of
from torchsleuth.search.cure.find import (
    NothingToWorkAround,
    attempts,
    find_workarounds,
    ordered,
    workaround_of,
)
from torchsleuth.search.minify.case_state import CaseQuestions, SearchStart
from torchsleuth.search.minify.contract import Reduction
from torchsleuth.search.minify.states import Questions
from torchsleuth.torch_core.graphs.source_line import SourceLine
from trials_here import TrialsHere

WRONG = Signature("accuracy", "run", outputs=("outputs[0]",))
BROKEN = Signature("compile_error", "compile", ("ValueError",), "bad size #")
CRASH = Signature("crash", "compile", signal="SIGSEGV")


class FakeQueue(TrialsHere):
    """Answers whether a trial fails by a function, and remembers those; everything else is found out here."""

    count = 2

    def __init__(self, fails):
        super().__init__()
        self.fails = fails

    def run(self, trial, *, limits=None, fresh=False):
        if trial.question is not Question.FAILS:
            return self.answer(trial)
        self.trials.append(trial)
        found = self.fails(trial)
        return found if isinstance(found, Outcome) else Outcome(found, 0.1, seen=Seen(run_seconds=0.01))


def off(trial, subsystem):
    return trial.change.off.get(subsystem, {}).get("names", ())


def made(tmp_path, answer, *, kind="compile_error", triage=None, **changes):
    """A case of three calls, the second a sin at fault, and questions that are answered as told."""
    signature = {"compile_error": BROKEN, "accuracy": WRONG, "crash": CRASH}[kind]
    triage = triage or Triage(
        component="inductor",
        subsystem="lowerings",
        ops=("aten.sin.default",),
        nodes=("sin_default",),
        pinned=True,
    )
    case = make(kind=kind, phase=signature.phase, signature=signature, triage=triage, **changes)
    folder = write_case(tmp_path / "cases", case, {})

    def graph(x):
        return (aten.cos.default(aten.sin.default(aten.exp.default(x))),)

    def line(number, function):
        return SourceLine("/home/me/m.py", number, function)

    lines = {"exp_default": line(1, "f"), "sin_default": line(9, "wave"), "cos_default": line(2, "f")}
    state = traced(graph, torch.ones(3), level="aot", state={"grad": False})
    start = SearchStart(state, signature, GraphRecord(CompileSettings(), nodes=lines), "")
    workers = FakeQueue(answer)
    return folder, CaseQuestions(workers, tmp_path / "store", _opened={folder.path: start}), workers


def found_for(folder, questions, budget_seconds=60.0):
    find_workarounds(folder, questions, budget_seconds=budget_seconds)
    return list(open_case(folder.path.parent, str(folder.path)).case.workarounds)


def broken_lowering(signature):
    """A compiler that fails on a sin unless it is left out."""

    def answer(trial):
        cured = trial.change.backend or "aten.sin.default" in off(trial, "lowerings")
        return None if cured or "aten.sin" not in trial.graph else signature

    return answer


@pytest.mark.parametrize("signature", [BROKEN, CRASH])
def test_the_operator_and_the_function_are_verified_and_the_mildest_comes_first(tmp_path, signature):
    folder, questions, _ = made(tmp_path, broken_lowering(signature), kind=signature.kind)
    found = found_for(folder, questions)
    assert [(w.name, w.verified) for w in found] == [
        ("aten.sin.default kept eager", True),
        ("function wave eager", True),
        ("backend aot_eager", True),
    ]
    assert all(w.cost is None and w.program is None for w in found)


def test_every_trial_runs_to_the_end_and_is_compared_with_eager(tmp_path):
    folder, questions, workers = made(tmp_path, broken_lowering(BROKEN))
    found_for(folder, questions)
    assert len(workers.trials) == 4
    assert all(not t.stop_early and t.kind == "accuracy" for t in workers.trials)
    assert all(t.tolerances.keys() == {"outputs[0]"} for t in workers.trials if "aten.sin" in t.graph)


def test_numbers_that_are_wrong_do_not_verify_a_workaround(tmp_path):
    def answer(trial):
        return WRONG if off(trial, "lowerings") else broken_lowering(BROKEN)(trial)

    folder, questions, _ = made(tmp_path, answer)
    found = {w.name: w for w in found_for(folder, questions)}
    assert found["aten.sin.default kept eager"].error == "it runs, but the numbers are wrong"
    assert not found["aten.sin.default kept eager"].verified and found["function wave eager"].verified


def test_a_graph_that_does_not_fail_here_has_no_workarounds(tmp_path):
    folder, questions, _ = made(tmp_path, lambda trial: None)
    with pytest.raises(NothingToWorkAround, match="does not fail here"):
        found_for(folder, questions)


def test_a_bug_of_the_program_has_none_either(tmp_path):
    triage = Triage(component="program", user_line="m.py:9")
    folder, questions, _ = made(tmp_path, lambda trial: BROKEN, triage=triage)
    with pytest.raises(NothingToWorkAround, match=r"the program, at m\.py:9"):
        found_for(folder, questions)


def test_where_the_checks_own_random_numbers_cure_it_that_is_the_answer(tmp_path):
    folder, questions, _ = made(tmp_path, lambda trial: None if trial.kind == "accuracy" else BROKEN)
    found = found_for(folder, questions)
    assert found[0].how == "torch._inductor.config.fallback_random = True" and found[0].verified
    assert [w.name for w in found[1:]] == ["backend aot_eager"]


def test_settings_are_searched_for_where_nothing_else_helps(tmp_path):
    def answer(trial):
        config = trial.settings.config.get("torch._inductor.config", {})
        return None if config.get("max_fusion_size") == "1" or trial.change.backend else BROKEN

    folder, questions, _ = made(tmp_path, answer, triage=Triage())
    found = found_for(folder, questions)
    assert found[0].how == "torch._inductor.config.max_fusion_size = 1" and found[0].verified


def test_when_the_time_is_over_the_rest_says_so(tmp_path):
    folder, questions, _ = made(tmp_path, broken_lowering(BROKEN))
    found = found_for(folder, questions, -1)
    assert {w.error for w in found} == {NO_TIME} and not any(w.verified for w in found)


def test_the_last_resort_is_tried_first_so_that_there_is_something(tmp_path):
    folder, questions, workers = made(tmp_path, broken_lowering(BROKEN))
    found_for(folder, questions)
    assert [t.change.backend for t in workers.trials[:2]] == [None, "aot_eager"]


def test_what_helps_the_smallest_graph_is_tried_before_what_gives_up_less(tmp_path):
    """Of two operators that triage could not tell apart, the whole graph is first compiled without the right one."""
    ops = ("aten.exp.default", "aten.sin.default")
    folder, questions, workers = made(
        tmp_path, broken_lowering(BROKEN), triage=Triage(component="inductor", ops=ops)
    )
    small = traced(lambda x: (aten.sin.default(x),), torch.ones(3), level="aot", state={"grad": False})
    questions.smallest[folder.path] = Reduction(small, 1, 9, 1.0, True, ())
    found_for(folder, questions)
    whole = [list(off(t, "lowerings")) for t in workers.trials if "aten.cos" in t.graph]
    assert next(names for names in whole if names) == ["aten.sin.default"]


def test_what_works_is_in_the_case_before_the_next_is_tried(tmp_path):
    class Lost(BaseException):
        """The host is ended."""

    def answer(trial):
        if off(trial, "lowerings"):
            raise Lost
        return broken_lowering(BROKEN)(trial)

    folder, questions, _ = made(tmp_path, answer)
    with pytest.raises(Lost):
        found_for(folder, questions)
    kept = open_case(folder.path.parent, str(folder.path)).case.workarounds
    assert [(w.name, w.verified) for w in kept] == [("backend aot_eager", True)]


def test_a_hang_seen_here_before_is_not_waited_for_again(tmp_path):
    hang = Signature("hang", "compile")
    folder, questions, workers = made(tmp_path, broken_lowering(hang), verified=Verified(1, 1, True))
    case = make(kind="hang", signature=hang, triage=folder.case.triage, verified=folder.case.verified)
    runner = Runner(questions, hang)
    there = SimpleNamespace(case=case, file=folder.file)
    found = attempts(there, questions.start_of(folder), runner, 60)
    assert found[0][1].name == "aten.sin.default kept eager" and len(workers.trials) == 5


def test_wrong_numbers_come_with_a_cost_against_the_compiled_graph(tmp_path):
    def answer(trial):
        cured = broken_lowering(WRONG)(trial)
        fast = 0.3 if off(trial, "lowerings") else 0.9 if trial.change.backend else 0.2
        return Outcome(cured, 0.1, seen=Seen(run_seconds=fast if trial.time_runs else None))

    folder, questions, _ = made(tmp_path, answer, kind="accuracy")
    costs = {w.name: w.cost for w in found_for(folder, questions)}
    assert costs["aten.sin.default kept eager"] == 1.5 and costs["backend aot_eager"] == 4.5


def tried(name, reach, seconds=None, error=None, **change):
    return Tried(Change(name=name, how=name, reach=reach, **change), error, 0.1, seconds)


def order(*listed):
    return [each.change.name for each in ordered(listed)]


def test_verified_ones_come_first_and_what_gives_up_less_before_what_gives_up_more():
    failed = tried("failed", SETTING, error="it fails as before")
    assert order(tried("op", OPERATOR), failed, tried("flag", SETTING)) == ["flag", "op", "failed"]


def test_a_faster_one_goes_before_a_milder_one_beyond_noise_only():
    assert order(tried("flag", SETTING, 0.013), tried("op", OPERATOR, 0.010)) == ["flag", "op"]
    assert order(tried("flag", SETTING, 0.030), tried("op", OPERATOR, 0.010)) == ["op", "flag"]
    assert order(tried("flag", SETTING, 30e-6), tried("op", OPERATOR, 10e-6)) == ["flag", "op"]


def test_an_estimate_without_its_graph_breaks_does_not_overtake():
    module = tried("module", MODULE, 0.001, eager_nodes=frozenset({"a"}))
    parted = tried("break", BREAK, 0.001, cut_before="a")
    assert order(parted, module, tried("op", OPERATOR, 0.1)) == ["op", "module", "break"]


def test_another_backend_is_last_however_fast():
    assert order(tried("eager", BACKEND, 0.001), tried("op", OPERATOR, 0.1)) == ["op", "eager"]


def test_nothing_is_begun_after_the_deadline(tmp_path):
    folder, questions, workers = made(tmp_path, broken_lowering(BROKEN))
    quick = workers.fails

    def slow(trial):
        time.sleep(0.15)
        return quick(trial)

    workers.fails = slow
    found_for(folder, questions, 0.2)
    assert len(workers.trials) < 4


def test_a_wrong_result_is_measured_by_how_far_it_was_when_it_was_seen(tmp_path):
    questions = Questions(TrialsHere(), tmp_path)
    state = traced(
        lambda x: (aten.cos.default(x), aten.sin.default(aten.cos.default(x))),
        torch.ones(3),
        state={"grad": False},
    )
    original = Original(state, True, questions, allowed={"outputs[1]": 0.04})
    told = original.tolerances_in(state)
    assert told["outputs[1]"] == 0.04
    assert 0 < told["outputs[0]"] < 1e-4  # it was right: rounding alone may move it
    (part,) = parts_of(original, Change(eager_nodes=frozenset({"cos_default", "cos_default_1"})))
    assert original.tolerances_in(part) == {"outputs[0]": 0.04}
    assert Original(state, True, questions).tolerances_in(state) is None


def test_parts_say_nothing_about_a_write_through_a_view_that_the_other_part_made(tmp_path):
    def graph(x):
        part = aten.slice.Tensor(x, 0, 0, 2)
        return (aten.cos.default(x), aten.mul_.Tensor(part, 2.0))

    state = traced(graph, torch.ones(3), level="dynamo", state={"grad": False})
    original = Original(state, True, Questions(TrialsHere(), tmp_path))
    for change in (Change(cut_before="mul__tensor"), Change(eager_nodes=frozenset({"mul__tensor"}))):
        with pytest.raises(NotApplicable, match="mul__tensor still writes"):
            parts_of(original, change)
    assert len(parts_of(original, Change(eager_nodes=frozenset({"slice_tensor"})))) == 1


def timed(name, seconds, reach=SETTING):
    return Tried(Change(name=name, how=name, reach=reach), None, run_seconds=seconds)


def test_of_runs_that_are_too_short_to_measure_there_is_no_ratio_and_no_order():
    # 0.72 and 0.4 ms: a toy tensor, and the noise of calling anything.
    slow, fast = timed("mild", 0.00072), timed("harsh", 0.0004, OPERATOR)
    assert [each.change.name for each in ordered([fast, slow])] == ["mild", "harsh"]
    assert workaround_of(slow, 0.0005).cost is None and workaround_of(slow, 0.5).cost is None
    slow, fast = timed("mild", 0.072), timed("harsh", 0.04, OPERATOR)
    assert [each.change.name for each in ordered([slow, fast])] == ["harsh", "mild"]
    assert workaround_of(slow, 0.05).cost == 1.44
