"""A search that needs only a part of the compiler asks only for that part."""

import time
from concurrent.futures import Future

import pytest
import torch
from made_graphs import aten, traced

from torchsleuth.minify.oracle import TrialOracle
from torchsleuth.minify.questions import Questions
from torchsleuth.minify.search.contract import OutOfBudget
from torchsleuth.minify.search.engine import Engine
from torchsleuth.processes.limits import Limits
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.trials.trial import Outcome

WRONG = Signature("accuracy", "run")
HANG = Signature("hang", "compile")


class Answered:
    """Stands where workers are; answers by what a trial leaves out of the compiler, and remembers the clocks."""

    count, limits = 1, Limits()

    def __init__(self, answer):
        self.answer, self.clocks = answer, []

    def submit(self, trial, *, limits=None, fresh=False):
        self.clocks.append(limits.compile)
        ticket = Future()
        ticket.set_result(self.answer(trial.switches))
        return ticket

    def run(self, trial, *, limits=None, fresh=False):
        return self.submit(trial, limits=limits).result()


def oracle_of(answer, expected, tmp_path, limits=None):
    return TrialOracle(Questions(Answered(answer), tmp_path), expected, limits)


def state():
    return traced(lambda x: aten.sin.default(x), torch.ones(2))


def test_wrong_results_of_a_pass_are_looked_for_without_lowering(tmp_path):
    oracle = oracle_of(lambda _: Outcome(WRONG, 1.0), WRONG, tmp_path)
    assert oracle.quicker(state()).trial(state()).switches.passes_alone


def test_wrong_results_of_a_lowering_are_looked_for_without_generated_code(tmp_path):
    oracle = oracle_of(lambda how: Outcome(None if how.passes_alone else WRONG, 1.0), WRONG, tmp_path)
    assert oracle.quicker(state()).trial(state()).switches.interpret


def test_wrong_results_of_generated_code_need_all_of_the_compiler(tmp_path):
    assert oracle_of(lambda _: Outcome(None, 1.0), WRONG, tmp_path).quicker(state()) is None


def test_a_hang_is_told_by_a_clock_made_of_what_a_healthy_part_takes(tmp_path):
    oracle = oracle_of(
        lambda how: Outcome(None if how.passes_alone else HANG, 1.5), HANG, tmp_path, Limits(compile=60)
    )
    quick = oracle.quicker(state())
    assert oracle.workers.clocks == [60, 7.5]
    assert quick.limits.compile == 7.5
    assert quick.trial(state()).switches.stop_after == "codegen"


def test_a_search_asks_nothing_that_could_not_be_answered_in_its_time(tmp_path):
    oracle = oracle_of(lambda _: Outcome(HANG, 60.0), HANG, tmp_path, Limits(compile=60))
    engine = Engine(oracle, state(), deadline=time.monotonic() + 30)
    with pytest.raises(OutOfBudget):
        engine.fails("nodes", "a question of 60 s", state())
    assert oracle.workers.clocks == []


def test_a_hang_that_is_barely_slower_than_a_healthy_compile_has_its_own_clock(tmp_path):
    oracle = oracle_of(
        lambda how: Outcome(None if how.passes_alone else HANG, 9.0), HANG, tmp_path, Limits(compile=60)
    )
    assert oracle.quicker(state()) is None
