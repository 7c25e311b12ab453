"""A search that needs only a part of the compiler asks only for that part."""

from concurrent.futures import Future
from dataclasses import replace

import pytest
import torch

from made_graphs import aten, traced
from torchsleuth.core.changes import NOTHING, Change
from torchsleuth.core.processes.limits import Limits
from torchsleuth.core.protocol.trials import Outcome
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.search.minify.contract import Oracle, OutOfBudget
from torchsleuth.search.minify.driver import search
from torchsleuth.search.minify.engine import Engine
from torchsleuth.search.minify.oracle import TrialOracle
from torchsleuth.search.minify.states import Questions

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
        ticket.set_result(self.answer(trial.change))
        return ticket

    def run(self, trial, *, limits=None, fresh=False):
        return self.submit(trial, limits=limits).result()


def oracle_of(answer, expected, tmp_path, limits=None):
    return TrialOracle(Questions(Answered(answer), tmp_path), expected, limits)


def state():
    return traced(lambda x: aten.sin.default(x), torch.ones(2))


def test_wrong_results_of_a_pass_are_looked_for_without_lowering(tmp_path):
    oracle = oracle_of(lambda _: Outcome(WRONG, 1.0), WRONG, tmp_path)
    assert oracle.quicker(state()).trial(state()).change.passes_alone


def test_wrong_results_of_a_lowering_are_looked_for_without_generated_code(tmp_path):
    oracle = oracle_of(lambda how: Outcome(None if how.passes_alone else WRONG, 1.0), WRONG, tmp_path)
    assert oracle.quicker(state()).trial(state()).change.interpret


def test_wrong_results_of_generated_code_need_all_of_the_compiler(tmp_path):
    assert oracle_of(lambda _: Outcome(None, 1.0), WRONG, tmp_path).quicker(state()) is None


def test_a_hang_is_told_by_a_clock_made_of_what_a_healthy_part_takes(tmp_path):
    oracle = oracle_of(
        lambda how: Outcome(None if how.passes_alone else HANG, 0.8), HANG, tmp_path, Limits(compile=60)
    )
    quick = oracle.quicker(state())
    assert oracle.workers.clocks == pytest.approx([10.8, 4.0])
    assert quick.limits.compile == 4.0
    assert quick.trial(state()).change.stop_after == "codegen"


def test_a_search_asks_nothing_that_could_not_be_answered_in_its_time(tmp_path):
    oracle = oracle_of(lambda _: Outcome(HANG, 60.0), HANG, tmp_path, Limits(compile=60))
    engine = Engine(oracle, state(), budget_seconds=5)
    with pytest.raises(OutOfBudget):
        engine.fails("nodes", "a question of 60 s", state())
    assert oracle.workers.clocks == []


def test_a_hang_that_is_barely_slower_than_a_healthy_compile_has_its_own_clock(tmp_path):
    oracle = oracle_of(
        lambda how: Outcome(None if how.passes_alone else HANG, 9.0), HANG, tmp_path, Limits(compile=60)
    )
    assert oracle.quicker(state()) is None


def test_where_the_passes_hang_a_tiny_compile_is_what_is_healthy(tmp_path):
    def answer(how):
        return Outcome(None if how == NOTHING else HANG, 0.5)

    oracle = oracle_of(answer, HANG, tmp_path, Limits(compile=60))
    assert oracle.quicker(state()).limits.compile == pytest.approx(5 * 0.5 * 1.05)


def test_a_hang_while_running_is_told_by_what_a_run_in_eager_takes(tmp_path):
    hang = Signature("hang", "run")
    oracle = oracle_of(lambda _: Outcome(hang, 0.0, value={"seconds": 0.01}), hang, tmp_path, Limits(run=60))
    oracle.questions.eager_seconds = lambda state: 0.01
    quick = oracle.quicker(state())
    assert (quick.limits.compile, quick.limits.run) == (Limits().compile, 2.0)


def chain(length):
    def doubled(x):
        for _ in range(length):
            x = aten.add.Tensor(x, x)
        return x

    return traced(doubled, torch.ones(2))


class Doubling(Oracle):
    """Each call in a row doubles the seconds; fails where they are more than the clock."""

    failing_is_slow = True

    def __init__(self, clock):
        self.clock, self.asked = clock, []

    def __call__(self, states):
        sizes = [sum(n.op == "call_function" for n in s.graph.graph.nodes) for s in states]
        self.asked += sizes
        return [2.0**size / 1000 > self.clock for size in sizes]

    def quicker(self, state):
        self.quick = Doubling(2.0) if self.clock > 2 else None
        return self.quick


class Exploding(Doubling):
    """As above, and it can say that half of the calls takes next to nothing."""

    def settles_for(self, quicker, half):
        self.clock, self.half = quicker.clock, sum(n.op == "call_function" for n in half.graph.graph.nodes)
        return 2.0**self.half / 1000 < quicker.clock / 4


def test_where_half_takes_next_to_nothing_a_short_clock_is_enough():
    oracle = Exploding(30.0)
    found = search(chain(60), oracle)
    assert found.calls == 11 and found.complete  # 2 ** 11 is the first power above 2,000


def test_a_hang_settles_for_a_short_clock_only_where_half_of_its_calls_is_quick(tmp_path):
    def takes(slow):
        def answer(change):
            return Outcome(HANG, 2.0) if slow else Outcome(None, 0.1)

        return answer

    for slow in (True, False):
        oracle = oracle_of(takes(slow), HANG, tmp_path)
        quick = replace(oracle, limits=Limits(compile=2.0), change=Change(stop_after="codegen"))
        assert oracle.settles_for(quick, chain(6)) is not slow
        assert oracle.grows is not slow
    assert (oracle.limits.compile, oracle.trial(chain(6)).change.stop_after) == (2.0, "codegen")
    assert not oracle_of(takes(False), HANG, tmp_path).settles_for(quick, chain(1)), (
        "any compile is quick then"
    )
