"""The set-up of a device is waited for before a clock starts; on the CPU there is nothing to wait for."""

from concurrent.futures import Future

import pytest

from torchsleuth.core.protocol.trials import Outcome
from torchsleuth.search.minify.case_state import CannotMinify, wait_for_device


class TrialQueue:
    def __init__(self, outcome):
        self.outcome, self.trials = outcome, []

    def submit(self, trial, *, fresh):
        self.trials.append(trial)
        ticket = Future()
        if self.outcome is not None:
            ticket.set_result(self.outcome)
        return ticket


def test_a_tiny_trial_goes_to_the_device_and_none_to_the_cpu():
    workers = TrialQueue(Outcome(None, 0.1))
    wait_for_device(workers, "cpu", 5.0)
    assert not workers.trials
    wait_for_device(workers, "cuda:0", 5.0)
    assert [spec["device"] for spec in workers.trials[0].inputs["inputs"]] == ["cuda:0"]


@pytest.mark.timeout(60)
def test_a_device_that_never_comes_up_is_not_waited_for_without_end():
    assert wait_for_device(TrialQueue(None), "cuda:0", 0.1) >= 0.1


def test_a_device_that_is_not_there_ends_the_search_with_what_to_do():
    workers = TrialQueue(Outcome(None, 0.1, error="there is none here"))
    with pytest.raises(CannotMinify, match=r"cuda:0.*not here.*there is none here.*on a machine that has it"):
        wait_for_device(workers, "cuda:0", 5.0)
