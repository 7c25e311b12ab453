"""Failures that come only sometimes: how often, and how often a pass must be seen before it is believed.

One failure proves itself; one pass proves little where the original fails half of the time. With a failure rate p,
m passes in a row are by chance in (1-p)^m of all cases, and m is chosen so that this is below one in a hundred. A
search measures the rate on the smallest state that it found to fail, not on the whole graph, the dearest question;
where that does not always fail, it starts again with passes repeated as often as the rate asks for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchsleuth.core.processes.limits import Limits
from torchsleuth.core.protocol.trials import Outcome, Trial
from torchsleuth.search.workers.queue import TrialQueue

# The chance at which a pass that is none may be believed.
RISK = 0.01
# Below this rate a search would take longer than anyone waits: 44 runs to believe one pass.
LEAST_RATE = 0.1
# Beside the one failure already seen: a failure that comes half of the time passes three in a row once in eight.
AGAIN = 2
# Where one of them passed, the rate is worth knowing well enough to choose the number of repeats.
MORE = 7


@dataclass(frozen=True)
class FailureRate:
    """How often a trial failed as expected, in how many runs that said anything.

    >>> FailureRate(3, 3).repeats, FailureRate(2, 4).repeats
    (1, 7)
    """

    failures: int
    runs: int

    @property
    def flaky(self) -> bool:
        return 0 < self.failures < self.runs

    @property
    def repeats(self) -> int:
        """How many passes in a row make a pass."""
        return repeats_for(self.failures / self.runs if self.runs else 0.0)

    def __add__(self, other: FailureRate) -> FailureRate:
        return FailureRate(self.failures + other.failures, self.runs + other.runs)

    def __str__(self) -> str:
        return (
            f"it fails only sometimes ({self.failures} of {self.runs} runs), so a pass counts once it was seen "
            f"{self.repeats} times in a row; this takes longer"
        )


class FlakyFailure(Exception):
    """What is looked for fails in some runs and passes in others; carries how often."""

    def __init__(self, rate: FailureRate) -> None:
        super().__init__(str(rate))
        self.rate = rate


def repeats_for(rate: float) -> int:
    """How many passes in a row are needed at a failure rate, so that a wrong pass is rarer than `RISK`.

    >>> [repeats_for(p) for p in (1.0, 0.7, 0.5)]
    [1, 4, 7]
    """
    if rate >= 1 - RISK or rate <= 0:
        return 1
    rate = max(rate, LEAST_RATE)
    return math.floor(math.log(RISK) / math.log1p(-rate)) + 1


def failure_rate(
    workers: TrialQueue, trial: Trial, k: int = 3, more: int = MORE, limits: Limits | None = None
) -> FailureRate:
    """Runs the trial `k` times, and `more` times again where it neither always nor never failed.

    One that always fails alike is not `failure_rate(workers, trial).flaky`.
    """
    outcomes = _several(workers, trial, k, limits)
    failures = sum(outcome.fails_like(trial.expected) for outcome in outcomes)
    if 0 < failures < len(outcomes):
        outcomes += _several(workers, trial, more, limits)
    told = [outcome for outcome in outcomes if outcome.error is None]
    return FailureRate(sum(outcome.fails_like(trial.expected) for outcome in told), len(told))


def measured(
    workers: TrialQueue, trial: Trial, seen: FailureRate, limits: Limits | None = None
) -> FailureRate:
    """How often the trial fails, from what was `seen` and a few runs more; many more only where it is not always alike.

    One failure was seen: `measured(workers, trial, FailureRate(1, 1))`.
    """
    rate = seen + failure_rate(workers, trial, AGAIN, more=0, limits=limits)
    return rate + failure_rate(workers, trial, MORE, more=0, limits=limits) if rate.flaky else rate


def _several(workers: TrialQueue, trial: Trial, times: int, limits: Limits | None) -> list[Outcome]:
    tickets = [workers.submit(trial, limits=limits, fresh=True) for _ in range(times)]
    return [ticket.result() for ticket in tickets]
