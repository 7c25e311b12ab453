"""Failures that come only sometimes, as a search meets them: how often is measured before a pass counts.

Not on the whole graph, which is the dearest question, but on the smallest state that was found to fail: one failure
proves itself, and the same state asked again tells at little cost whether it always fails. Where it does not, the
search starts again with passes repeated as often as that rate asks for.
"""

from __future__ import annotations

from torchsleuth.trials.trial import Trial
from torchsleuth.workers.failure_rate import FailureRate, failure_rate
from torchsleuth.workers.queue import Desk

# Beside the one failure already seen: a failure that comes half of the time passes three in a row once in eight.
AGAIN = 2
# Where one of them passed, the rate is worth knowing well enough to choose the number of repeats.
MORE = 7


class ComesSometimes(Exception):
    """What is looked for fails in some runs and passes in others; carries how often."""

    def __init__(self, rate: FailureRate) -> None:
        super().__init__(told(rate))
        self.rate = rate


def told(rate: FailureRate) -> str:
    """The sentence for a person.

    >>> told(FailureRate(5, 10))
    'it fails only sometimes (5 of 10 runs), so a pass counts once it was seen 7 times in a row; this takes longer'
    """
    return (
        f"it fails only sometimes ({rate.failures} of {rate.runs} runs), so a pass counts once it was seen "
        f"{rate.repeats} times in a row; this takes longer"
    )


def measured(workers: Desk, trial: Trial, seen: FailureRate) -> FailureRate:
    """How often the trial fails, from what was `seen` and a few runs more; many more only where it is not always alike.

    >>> measured(workers, trial, FailureRate(1, 1)).flaky
    False
    """
    rate = _sum(seen, failure_rate(workers, trial, AGAIN, more=0))
    return _sum(rate, failure_rate(workers, trial, MORE, more=0)) if rate.flaky else rate


def _sum(one: FailureRate, other: FailureRate) -> FailureRate:
    return FailureRate(
        one.failures + other.failures,
        one.runs + other.runs,
        max(one.slowest, other.slowest),
        one.others + other.others,
        one.errors + other.errors,
    )
