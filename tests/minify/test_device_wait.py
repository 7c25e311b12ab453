"""The set-up of a device is waited for before a clock starts; on the CPU there is nothing to wait for."""

from concurrent.futures import Future

from torchsleuth.minify.case_state import wait_for_device


class TrialQueue:
    def __init__(self, answers):
        self.answers, self.trials = answers, []

    def submit(self, trial, *, fresh):
        self.trials.append(trial)
        ticket = Future()
        if self.answers:
            ticket.set_result(None)
        return ticket


def test_a_tiny_trial_goes_to_the_device_and_none_to_the_cpu():
    workers = TrialQueue(answers=True)
    wait_for_device(workers, "cpu", 5.0)
    assert not workers.trials
    wait_for_device(workers, "cuda:0", 5.0)
    assert [spec["device"] for spec in workers.trials[0].inputs["inputs"]] == ["cuda:0"]


def test_a_device_that_never_comes_up_is_not_waited_for_without_end():
    assert 0.1 <= wait_for_device(TrialQueue(answers=False), "cuda:0", 0.1) < 5.0
