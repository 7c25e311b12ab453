"""A large graph is made small before it is asked who is at fault."""

import torch

from made import make
from made_graphs import aten, traced
from torchsleuth.core.cases.folder import write_case
from torchsleuth.core.cases.record import CompileSettings, GraphRecord
from torchsleuth.core.protocol.trials import Outcome, Question, Seen
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.search.blame.triage_case import MANY_CALLS, PUT_OFF, triage_case
from torchsleuth.search.minify.case_state import CaseQuestions, SearchStart
from torchsleuth.search.minify.contract import Reduction
from torchsleuth.torch_core.graphs.source_line import SourceLine
from trials_here import TrialsHere

BROKEN = Signature("compile_error", "compile", ("ValueError",), "bad size #")
HANG = Signature("hang", "compile")


class Compiler(TrialsHere):
    """Fails on a sin unless its lowering is left out."""

    def __init__(self, seen=BROKEN):
        super().__init__()
        self.seen = seen

    def wait_ready(self, seconds):
        pass

    def run(self, trial, *, limits=None, fresh=False):
        if trial.question is not Question.FAILS:
            return self.answer(trial)
        self.trials.append(trial)
        off = trial.change.off.get("lowerings")
        cured = trial.change.uncompiled or (
            off is not None and "aten.sin.default" in off.get("names", ["aten.sin.default"])
        )
        shown = Seen(applied={"lowerings": ("aten.sin.default at 1",)})
        return Outcome(None if cured or "aten.sin" not in trial.graph else self.seen, 0.1, seen=shown)


def large(x):
    for _ in range(MANY_CALLS):
        x = aten.cos.default(x)
    return (aten.exp.default(aten.sin.default(x)),)


def made(tmp_path, workers, seen=BROKEN):
    lines = {"sin_default": SourceLine("/home/me/m.py", 9), "exp_default": SourceLine("/home/me/m.py", 10)}
    state = traced(large, torch.ones(3), level="aot", state={"grad": False})
    folder = write_case(tmp_path / "cases", make(kind=seen.kind, phase="compile", signature=seen), {})
    start = SearchStart(state, seen, GraphRecord(CompileSettings(), nodes=lines), "")
    return folder, CaseQuestions(workers, tmp_path / "store", _opened={folder.path: start})


def test_of_a_large_graph_that_is_about_to_be_small_only_the_failing_run_is_looked_at(tmp_path):
    workers = Compiler()
    folder, questions = made(tmp_path, workers)
    found = triage_case(folder, questions, before_minify=True).case.triage
    assert (found.component, found.error) == (None, PUT_OFF)
    assert len(workers.trials) == 2  # as it was, and in eager


def test_what_is_left_of_it_names_component_operator_and_line_without_the_large_graph(tmp_path):
    workers = Compiler()
    folder, questions = made(tmp_path, workers)
    small = traced(lambda x: (aten.sin.default(x),), torch.ones(3), level="aot", state={"grad": False})
    questions.smallest[folder.path] = Reduction(small, 1, 9, 1.0, True, ())
    found = triage_case(folder, questions).case.triage
    assert (found.component, found.part, found.ops) == ("inductor", "lowering", ("aten.sin.default",))
    assert found.user_line == "m.py:9" and found.pinned
    assert workers.trials and not any("aten.cos" in trial.graph for trial in workers.trials)


def test_of_a_large_graph_that_hangs_the_component_is_known_at_once_and_its_time_is_not_waited_for(tmp_path):
    workers = Compiler(seen=HANG)
    folder, questions = made(tmp_path, workers, HANG)
    found = triage_case(folder, questions, before_minify=True).case.triage
    assert (found.component, found.error) == ("inductor", PUT_OFF)
    asked = [trial.change.stop_after for trial in workers.trials if trial.trace]
    assert asked == ["codegen"], "one look, which ends before the C++ compiler"


def test_a_hang_of_several_calls_is_not_blamed_on_where_it_stood(tmp_path):
    workers = Compiler(seen=HANG)
    folder, questions = made(tmp_path, workers, HANG)
    small = traced(
        lambda x: (aten.sin.default(aten.sin.default(x)),), torch.ones(3), level="aot", state={"grad": False}
    )
    questions.smallest[folder.path] = Reduction(small, 2, 9, 1.0, True, ())
    found = triage_case(folder, questions).case.triage
    assert (found.component, found.part) == ("inductor", "lowering")
    assert "stopped" not in found.detail
