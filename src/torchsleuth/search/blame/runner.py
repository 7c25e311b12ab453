"""Changes tried on the failing graph: what is asked of the workers, what they answer, and what is found by that.

What most is asked about are settings: those of the user without which nothing fails, and those that make the failure
vanish. Both answers are sets, because some bugs need two settings at once. A set is found whole first and then made
smaller, so that a pair costs no more than the settings it was picked from.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from torchsleuth.core.cases.model import Triage
from torchsleuth.core.change_table import CAUTIOUS, together
from torchsleuth.core.changes import Change, Config
from torchsleuth.core.criteria import SAME_BUG, Answer, Criterion
from torchsleuth.core.processes.limits import Limits, within
from torchsleuth.core.protocol.trials import Outcome, Trial
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.search.minify.contract import State
from torchsleuth.search.minify.states import Questions, trial_of
from torchsleuth.search.minify.subsets import smallest
from torchsleuth.search.workers.queue import TrialQueue
from torchsleuth.torch_internals.compile_trace import Step, unfinished
from torchsleuth.torch_internals.configuration import default_setting

Item = TypeVar("Item")
# Why nothing can be told of a trial that the search had no time for.
OUT_OF_TIME = "the time was up"


@dataclass(frozen=True)
class Asked:
    """Does this graph, with this change, still fail by this criterion? With `trace` the answer says where it stopped.

    `tolerances` take the place of what rounding noise explains, which is measured otherwise.
    """

    state: State
    change: Change
    criterion: Criterion = SAME_BUG
    trace: bool = False
    tolerances: Mapping[str, float] | None = None
    time_runs: bool = False


@dataclass(frozen=True)
class Result:
    """The answer to a question, and what it is based on."""

    change: Change
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


def blamed(
    change: Change,
    detail: str,
    *,
    ops: Sequence[str] = (),
    nodes: Sequence[str] = (),
    application: int | None = None,
) -> Triage:
    """Who is at fault where a change made the difference, as its row says; what comes after completes it.

    >>> blamed(Change(part="fusion", off={"fusion": {}}), "it passes without fusion").subsystem
    'fusion'
    """
    return Triage(
        change.component,
        change.part,
        tuple(ops),
        detail=detail,
        pinned=True,
        subsystem=next(iter(change.off), None),
        application=application,
        nodes=tuple(nodes),
    )


@dataclass
class Runner:
    """Where changes are tried: `Runner(questions, signature).ask(state, [CAPTURED, AOT])`.

    `say` is told of each when it begins and when it ends.
    """

    questions: Questions
    expected: Signature
    limits: Limits | None = None
    say: Callable[[str], None] = lambda text: None
    deadline: float | None = None
    # The stage after which a compile is decided, where a change does not say.
    stop_after: str | None = None
    log: list[Result] = field(default_factory=list)

    def ask(self, state: State, changes: Sequence[Change], *, trace: bool = False) -> list[Result]:
        """The answers about one graph, in order."""
        return self.ask_all([Asked(state, change, trace=trace) for change in changes])

    def ask_all(self, questions: Sequence[Asked], limits: Limits | None = None) -> list[Result]:
        """The answers, as many at a time as there are workers. After the deadline nothing can be told."""
        if self.out_of_time:
            late = Outcome(None, 0.0, error=OUT_OF_TIME)
            return [Result(asked.change, Answer.CANNOT_TELL, late) for asked in questions]
        limits = limits or within(self.limits or self.workers.limits, self.deadline, least=2.0)
        started = time.monotonic()
        tickets = []
        for asked in questions:
            trial = self.trial(asked)
            self.say(f"trying: {asked.change.what}")
            tickets.append((asked, trial, self.workers.submit(trial, limits=limits)))
        results = [self.result(asked, trial, ticket.result()) for asked, trial, ticket in tickets]
        for result in results:
            took = min(time.monotonic() - started, result.outcome.seconds)
            self.say(f"{result.change.what}: {result.answer.value} ({took:.1f} s)")
        self.log += results
        return results

    def one(self, state: State, change: Change, *, trace: bool = False) -> Result:
        """One answer."""
        return self.ask(state, [change], trace=trace)[0]

    def smallest_cure(
        self, state: State, items: Sequence[Item], without: Callable[[Sequence[Item]], Change]
    ) -> list[Item]:
        """The fewest of `items`, all of which together make it pass, that do so by themselves.

        Used as `smallest_cure(state, CAUTIOUS, together)`.
        """
        return smallest(
            items, lambda sets: [r.passes for r in self.ask(state, [without(some) for some in sets])]
        )

    @property
    def workers(self) -> TrialQueue:
        return self.questions.workers

    @property
    def out_of_time(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

    def trial(self, asked: Asked) -> Trial:
        """What is asked of a worker; a traced run writes its steps into a file of its own."""
        change, criterion, store = asked.change, asked.criterion, self.questions.store
        trace = None
        if asked.trace:
            store.mkdir(parents=True, exist_ok=True)
            trace = str((store / f"trace-{uuid.uuid4().hex[:12]}.txt").absolute())
        stop_after = change.stop_after or (None if criterion.to_the_end else self.stop_after)
        return replace(
            trial_of(with_config(asked.state, change.config), self.expected, store),
            change=replace(change, config={}, stop_after=stop_after),
            trace=trace,
            kind=criterion.checked_for,
            tolerances=asked.tolerances or {},
            measure_noise=asked.tolerances is None
            and "accuracy" in (criterion.checked_for, self.expected.kind),
            time_runs=asked.time_runs,
            stop_early=not criterion.to_the_end and not change.uncompiled,
        )

    def result(self, asked: Asked, trial: Trial, outcome: Outcome) -> Result:
        """What an outcome says."""
        answer = asked.criterion.answer(self.expected, outcome.signature, outcome.error)
        if outcome.signature is not None and outcome.seen.not_interpretable:
            answer = Answer.CANNOT_TELL
        steps = () if trial.trace is None else unfinished(Path(trial.trace))
        return Result(asked.change, answer, outcome, steps)


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


def switchable(state: State, settings: Sequence[Change] = CAUTIOUS) -> list[Change]:
    """Those settings that this torch has and that do not stand at their cautious value already."""
    given, options = state.settings.config, state.settings.options
    found = []
    for each in settings:
        ((module, values),) = each.config.items()
        ((key, value),) = values.items()
        default = default_setting(module, key)
        now = options.get(key) or given.get(module, {}).get(key)
        if default is not None and value != (repr(default[0]) if now is None else now):
            found.append(each)
    return found


def cautious_fix(runner: Runner, state: State, settings: Sequence[Change]) -> list[Change]:
    """The fewest cautious values that make the failure vanish, all of which together do."""

    def cautious(some: Sequence[Change]) -> Change:
        keys = [key for each in some for key in each.keys]
        return together(some, f"with cautious {', '.join(keys)}")

    return runner.smallest_cure(state, settings, cautious)


def settings_of(state: State) -> list[tuple[str, str]]:
    """The settings that are not torch's defaults, as (module, key); options of torch.compile under "options"."""
    found = [(module, key) for module, values in state.settings.config.items() for key in values]
    known = {key for _, key in found}
    return found + [("options", key) for key in state.settings.options if key not in known]


def only_settings(state: State, kept: Sequence[tuple[str, str]]) -> State:
    """The state with no other settings than these."""
    names = set(kept)
    keys = {key for _, key in kept}
    config = {
        module: {key: text for key, text in values.items() if (module, key) in names}
        for module, values in state.settings.config.items()
    }
    options = {key: text for key, text in state.settings.options.items() if key in keys}
    return state.setting(config=config, options=options)


def needed_settings(runner: Runner, state: State) -> list[tuple[str, str]]:
    """The fewest of the user's settings under which it still fails; none where it fails with torch's defaults."""

    def enough(sets: Sequence[Sequence[tuple[str, str]]]) -> list[bool]:
        return [runner.one(only_settings(state, s), Change(_only(s))).fails for s in sets]

    mine = settings_of(state)
    if not mine or enough([[]])[0]:
        return []
    return smallest(mine, enough)


def _only(kept: Sequence[tuple[str, str]]) -> str:
    names = ", ".join(key for _, key in kept)
    return f"with no other setting than {names}" if names else "with torch's default settings"
