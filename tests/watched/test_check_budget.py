"""How long comparing with eager may take: a clock that the test turns, and what a spent budget leaves out."""

import json

import pytest

from program_runs import run_watched
from torchsleuth.core.watching import CheckBudget, Settings


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def budget_after(first: float, own: float, spent: float, limit: float | None = None) -> CheckBudget:
    """A program whose first calls took so long, which ran on for so long, and of which so much was spent on checks."""
    clock = Clock()
    budget = CheckBudget(limit, clock)
    with budget.first_call():
        clock.now += first
    clock.now += own
    with budget.spending():
        clock.now += spent
    return budget


def test_comparing_may_take_as_long_again_as_first_calls_and_a_twentieth_of_the_rest():
    assert budget_after(first=30, own=200, spent=0).left == pytest.approx(10 + 30 + 10)
    assert budget_after(first=30, own=200, spent=20).left == pytest.approx(10 + 30 + 10 - 20)


def test_what_the_comparison_takes_within_a_first_call_is_not_the_programs_own_time():
    clock = Clock()
    budget = CheckBudget(None, clock)
    with budget.first_call():
        clock.now += 4
        with budget.first_call(), budget.spending():  # of a graph inside
            clock.now += 100
        clock.now += 1
        assert budget.left == pytest.approx(10 + 5 - 100)
    assert budget.left == pytest.approx(10 + 5 - 100)


def test_a_budget_that_is_given_is_the_budget():
    assert budget_after(first=30, own=200, spent=5, limit=7).left == pytest.approx(2)


def test_once_it_is_spent_only_what_nobody_has_looked_at_is_looked_at_within_bounds():
    spent = budget_after(first=1, own=0, spent=40)
    assert spent.seconds_for(first=False) == 0
    assert spent.seconds_for(first=True) == 60
    assert budget_after(first=1, own=0, spent=1000).seconds_for(first=True) == 0


def test_who_asks_for_every_nth_call_gets_every_nth_call_unless_a_budget_is_given_too():
    every = CheckBudget.of(Settings("", level=4, check_every=5))
    assert every.seconds_for(first=False) == 60
    both = CheckBudget.of(Settings("", level=4, check_every=5, check_budget=0.0))
    assert both.seconds_for(first=False) == 0


WRONG_LATER = """
import torch
calls = 0
def backend(graph, inputs):
    def run(*args):
        global calls
        calls += 1
        (result,) = graph(*args)
        return [result + (calls >= wrong_from)]
    return run
wrong_from = int(__import__("sys").argv[1])
f = torch.compile(lambda x: x.cos(), backend=backend)
for _ in range(3):
    f(torch.ones(3))
print(calls)
"""


def test_with_no_budget_the_first_look_at_a_graph_is_made_and_the_others_are_named(tmp_path):
    options = ("--check-accuracy", "--check-budget", "0", "--record-only", "--json")
    seen = run_watched(tmp_path / "first", WRONG_LATER, *options, arguments=("1",))
    assert [case["kind"] for case in seen.cases] == ["accuracy"], seen.stderr
    ran = run_watched(tmp_path / "second", WRONG_LATER, *options, arguments=("2",))
    assert (ran.status, ran.cases) == (0, []), ran.stderr
    left_out = json.loads(ran.stdout)["accuracy"]
    assert [each["kind"] for each in left_out if each["graph"] == 1] == ["FURTHER_CALLS_NOT_COMPARED"]
    assert "--check-budget" in left_out[0]["sentence"]
    assert [line for line in ran.ours() if "not compared" in line and "1 graph" in line] == []


def test_by_default_a_graph_that_goes_wrong_in_its_second_call_is_a_case(tmp_path):
    ran = run_watched(tmp_path, WRONG_LATER, "--check-accuracy", "--record-only", arguments=("2",))
    assert [case["kind"] for case in ran.cases] == ["accuracy"], ran.stderr
