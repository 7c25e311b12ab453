"""Runs that differ in one thing: an experiment is the failing graph with something of the compiler changed.

An answer has four values: it fails as before, it passes, it fails in another way, or nothing can be told. Only the
first two are evidence.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from torchsleuth.core.cases.answer import Answer
from torchsleuth.core.processes.limits import Limits, within
from torchsleuth.core.protocol.trials import Outcome, Switches, Trial
from torchsleuth.script_runtime.signature import Signature, fails_the_same_way
from torchsleuth.search.minify.contract import State
from torchsleuth.search.minify.oracle import Questions
from torchsleuth.search.minify.states import trial_of
from torchsleuth.search.minify.subsets import smallest
from torchsleuth.search.workers.queue import TrialQueue
from torchsleuth.torch_internals.compile_trace import Step, unfinished

Item = TypeVar("Item")
Config = Mapping[str, Mapping[str, str]]
# Why nothing can be told of a trial that the search had no time for.
OUT_OF_TIME = "the time was up"


@dataclass(frozen=True, eq=False)
class Experiment:
    """One change to the failing run, in words and as data.

    `config` are settings as Python text by module; `off`, `backend`, `interpret`, `eager`, `stop_after`, `forward_only`
    and `snippet` are those of `trials.Switches`; `kind` and `tolerances` replace those of the failure looked for.
    """

    what: str
    off: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    config: Config = field(default_factory=dict)
    backend: str | None = None
    interpret: bool = False
    eager: bool = False
    kind: str | None = None
    tolerances: Mapping[str, float] | None = None
    time_runs: bool = False
    # A workaround counts only if the whole graph then runs and its numbers are right.
    to_the_end: bool = False
    trace: bool = False
    stop_after: str | None = None
    forward_only: bool = False
    snippet: str = ""


@dataclass(frozen=True)
class Result:
    """An experiment's answer and what it is based on."""

    experiment: Experiment
    answer: Answer
    outcome: Outcome
    # Where a traced run stopped, outermost step first.
    steps: tuple[Step, ...] = ()

    @property
    def passes(self) -> bool:
        return self.answer is Answer.PASSES

    @property
    def fails(self) -> bool:
        return self.answer is Answer.FAILS

    def applied(self, subsystem: str) -> list[str]:
        """What of a subsystem the compiler applied, in order."""
        return list(self.outcome.seen.applied.get(subsystem, ()))


@dataclass
class ExperimentRunner:
    """Where experiments are run: `ExperimentRunner(questions, signature).ask(state, [Experiment("as it was")])`.

    `say` is told of each experiment when it begins and when it ends.
    """

    questions: Questions
    expected: Signature
    limits: Limits | None = None
    say: Callable[[str], None] = lambda text: None
    deadline: float | None = None
    # The stage after which a compile is decided, where an experiment does not say.
    stop_after: str | None = None
    log: list[Result] = field(default_factory=list)

    def ask(self, state: State, experiments: Sequence[Experiment]) -> list[Result]:
        """The answers, in order; as many at a time as there are workers. After the deadline nothing can be told."""
        if self.out_of_time:
            late = Outcome(None, 0.0, error=OUT_OF_TIME)
            return [Result(experiment, Answer.CANNOT_TELL, late) for experiment in experiments]
        limits = within(self.limits or self.workers.limits, self.deadline, least=2.0)
        return self.ask_pairs([(state, experiment) for experiment in experiments], limits)

    def ask_pairs(self, pairs: Sequence[tuple[State, Experiment]], limits: Limits | None) -> list[Result]:
        """The answers about different states."""
        started = time.monotonic()
        asked = []
        for state, experiment in pairs:
            trial, trace = self.trial(state, experiment)
            self.say(f"trying: {experiment.what}")
            asked.append((experiment, trace, self.workers.submit(trial, limits=limits)))
        results = [self.result(experiment, trace, ticket.result()) for experiment, trace, ticket in asked]
        for result in results:
            took = min(time.monotonic() - started, result.outcome.seconds)
            self.say(f"{result.experiment.what}: {result.answer.value} ({took:.1f} s)")
        self.log += results
        return results

    @property
    def workers(self) -> TrialQueue:
        return self.questions.workers

    @property
    def store(self) -> Path:
        return self.questions.store

    def smallest_cure(
        self, state: State, items: Sequence[Item], without: Callable[[Sequence[Item]], Experiment]
    ) -> list[Item]:
        """The fewest of `items`, all of which together make it pass, that do so by themselves.

        Used as `smallest_cure(state, flags, lambda some: Experiment("cautious", config=config_of(some)))`.
        """
        return smallest(
            items, lambda sets: [r.passes for r in self.ask(state, [without(some) for some in sets])]
        )

    def one(self, state: State, experiment: Experiment) -> Result:
        """One answer."""
        return self.ask(state, [experiment])[0]

    @property
    def out_of_time(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

    def trial(self, state: State, experiment: Experiment) -> tuple[Trial, Path | None]:
        """What is asked of a worker, and the file in which a traced run writes its steps."""
        trial = trial_of(with_config(state, experiment.config), self.expected, self.store)
        trace = None
        if experiment.trace:
            self.store.mkdir(parents=True, exist_ok=True)
            trace = self.store / f"trace-{uuid.uuid4().hex[:12]}.txt"
        switches = Switches(
            experiment.off,
            experiment.backend,
            experiment.interpret,
            experiment.eager,
            experiment.stop_after or (None if experiment.to_the_end else self.stop_after),
            None if trace is None else str(trace.absolute()),
            forward_only=experiment.forward_only,
            snippet=experiment.snippet,
        )
        changed = replace(
            trial,
            switches=switches,
            kind=experiment.kind,
            tolerances=experiment.tolerances or {},
            measure_noise=experiment.tolerances is None
            and "accuracy" in (experiment.kind, self.expected.kind),
            time_runs=experiment.time_runs,
            stop_early=not experiment.to_the_end and not experiment.eager,
        )
        return changed, trace

    def result(self, experiment: Experiment, trace: Path | None, outcome: Outcome) -> Result:
        """What an outcome says about the experiment."""
        steps = () if trace is None else unfinished(trace)
        if outcome.signature is None:
            answer = Answer.PASSES if outcome.error is None else Answer.CANNOT_TELL
        elif outcome.seen.not_interpretable:
            answer = Answer.CANNOT_TELL
        elif same_bug(self.expected, outcome.signature):
            answer = Answer.FAILS
        else:
            answer = Answer.OTHER
        return Result(experiment, answer, outcome, steps)


def same_bug(expected: Signature, seen: Signature) -> bool:
    """Whether a run under another backend or with other settings shows the same bug.

    Wrong numbers are wrong numbers; an error is known by its type and message wherever it now comes from.

    >>> same_bug(Signature("accuracy", "run", outputs=("outputs[0]",)), Signature("accuracy", "run"))
    True
    """
    if fails_the_same_way(expected, seen):
        return True
    if {expected.kind, seen.kind} <= {"compile_error", "runtime_error"}:
        return (expected.exceptions[-1:], expected.message) == (seen.exceptions[-1:], seen.message)
    return expected.kind == seen.kind and expected.signal == seen.signal


def with_config(state: State, changes: Config) -> State:
    """The state under further settings, given as Python text: `{"torch._inductor.config": {"cpp.simdlen": "1"}}`."""
    if not changes:
        return state
    config = {module: dict(values) for module, values in state.settings.config.items()}
    options = dict(state.settings.options)
    for module, values in changes.items():
        config.setdefault(module, {}).update(values)
        # Options of torch.compile are applied last, so they are changed as well.
        if module == "torch._inductor.config":
            options.update({key: text for key, text in values.items() if key in options})
    return state.setting(config=config, options=options)


def few(names: Sequence[str]) -> str:
    """Names in a sentence, however many there are.

    >>> few(["a", "b"]), few(["a", "b", "c", "d"])
    ('a, b', 'a and 3 others')
    """
    return ", ".join(names) if len(names) < 4 else f"{names[0]} and {len(names) - 1} others"
