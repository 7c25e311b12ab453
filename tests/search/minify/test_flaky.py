"""A failure that comes only sometimes is noticed, told in a sentence, and still made as small as it can be."""

import os
from pathlib import Path

import pytest
import torch
from flaky_trials import FAILS

from made_graphs import aten, traced
from program_runs import environment, sleuth, write_program
from torchsleuth.search.minify.driver import search
from torchsleuth.search.minify.oracle import TrialOracle
from torchsleuth.search.minify.states import Questions, record_here, trial_of
from torchsleuth.search.minify.subsets import NothingFails
from torchsleuth.search.workers.failure_rate import FailureRate, FlakyFailure, measured
from torchsleuth.search.workers.pool import Workers


def chain(x):
    for op in (aten.sin.default, aten.cos.default, aten.relu.default, aten.exp.default, aten.abs.default):
        x = op(x)
    return (x,)


def state_with(rhythm, folder):
    settings = {
        "level": "aot",
        "compile_kwargs": {},
        "options": {"rhythm": rhythm, "file": str(folder / "runs")},
    }
    return traced(chain, torch.ones(3), **settings)


@pytest.fixture
def workers(tmp_path):
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    names = {"call": "flaky_trials:run", "warm_up": None, "still_good": "flaky_trials:good"}
    with Workers(1, folder=tmp_path / "search", environment=env, **names) as made:
        yield made


class OwnRecording(Questions):
    """The trials of these workers know one question; what the nodes yield is found out here."""

    def recording(self, state):
        return record_here(state)


def oracle_of(workers, folder):
    return TrialOracle(OwnRecording(workers, folder / "values"), FAILS)


def test_a_failure_every_other_time_is_measured_on_what_was_found_and_then_searched_with_repeats(
    workers, tmp_path
):
    state = state_with("fp", tmp_path)
    oracle = oracle_of(workers, tmp_path)
    found = search(state, oracle, seeds=["relu_default"])
    with pytest.raises(FlakyFailure) as seen:
        oracle.look_again(found.state, failed=True)
    assert oracle.rate == seen.value.rate and oracle.rate.flaky
    assert workers.repeats == oracle.rate.repeats > 1
    found = search(state, oracle, seeds=["relu_default"])
    assert found.calls == 1 and "relu" in found.state.graph.code


def test_a_failure_that_the_first_look_missed_is_still_found(workers, tmp_path):
    state = state_with("pppppppppppf", tmp_path)
    oracle = oracle_of(workers, tmp_path)
    with pytest.raises(NothingFails):
        search(state, oracle)
    (tmp_path / "runs").write_bytes(b"x" * 10)
    with pytest.raises(FlakyFailure):
        oracle.look_again(state, failed=False)


def test_a_failure_that_always_comes_costs_two_runs_more_and_no_repeats(workers, tmp_path):
    state = state_with("f", tmp_path)
    oracle = oracle_of(workers, tmp_path)
    assert oracle([state]) == [True]
    oracle.look_again(state, failed=True)
    assert (oracle.rate, workers.repeats) == (None, 1)
    assert (tmp_path / "runs").stat().st_size == 3


@pytest.mark.parametrize(
    ("rhythm", "seen", "rate"), [("f", (1, 1), (3, 3)), ("p", (0, 1), (0, 3)), ("fp", (1, 1), (6, 10))]
)
def test_the_rate_is_measured_with_few_runs_unless_it_is_needed(workers, tmp_path, rhythm, seen, rate):
    trial = trial_of(state_with(rhythm, tmp_path), FAILS, tmp_path / "values")
    found = measured(workers, trial, FailureRate(*seen))
    assert (found.failures, found.runs) == rate


def test_the_sentence_says_how_often_and_what_that_means():
    assert "5 of 10 runs" in str(FailureRate(5, 10)) and "7 times" in str(FailureRate(5, 10))


FLAKY = """
    import os
    import torch

    def backend(graph, inputs):
        # Fails in two of three processes, by turns.
        with open(os.environ["TURNS"], "ab", buffering=0) as file:
            file.write(b"x")
        turn = os.path.getsize(os.environ["TURNS"])
        if turn % 3 != 2 and any("relu" in str(node.target) for node in graph.graph.nodes):
            raise ValueError("this compiler is moody about relu")
        return graph.forward

    def f(x):
        return torch.tanh(torch.relu(torch.sin(x)).cos()).exp()

    torch.compile(f, backend=backend)(torch.ones(4))
"""


@pytest.mark.slow
def test_a_case_that_fails_two_times_of_three_is_minified_and_says_so(tmp_path):
    env = environment(tmp_path, TURNS=str(tmp_path / "turns"))
    sleuth("run", "--record-only", write_program(tmp_path, FLAKY), cwd=tmp_path, env=env)
    done = sleuth("minify", "last", "--workers", "1", cwd=tmp_path, env=env)
    case = done.case
    assert done.status == 0, done.stderr
    assert "fails only sometimes" in done.stderr
    assert case["minified"]["calls"] == 1
    assert 0 < case["verified"]["reproduced"] < case["verified"]["times"]
    assert case["failure_rate"]["failures"] < case["failure_rate"]["runs"]
