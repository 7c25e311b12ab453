"""Whether a state still fails: a search runs nothing itself, it asks trials.

A state becomes a Trial, and fails where its Outcome has the wanted signature. Several are asked at once; as soon as one
fails, the ones after it are given up. A failure of another kind is kept for the end.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from concurrent.futures import Future, as_completed
from dataclasses import dataclass, field, replace

from torchsleuth.core.change_table import WITHOUT_CODE
from torchsleuth.core.changes import Change
from torchsleuth.core.processes.limits import LEAST_HANG, SECONDS_A_CALL, Limits, within
from torchsleuth.core.protocol.trials import EAGER, Outcome, Trial
from torchsleuth.script_runtime.signature import Signature, fingerprint
from torchsleuth.search.minify.contract import Oracle, S, State
from torchsleuth.search.minify.states import Questions, trial_of
from torchsleuth.search.workers.failure_rate import FailureRate, FlakyFailure, measured
from torchsleuth.search.workers.queue import TrialQueue
from torchsleuth.torch_core.compare.verdict.tolerances import Tolerances
from torchsleuth.torch_core.graphs.cut import calls_of
from torchsleuth.torch_core.graphs.recording import Recording
from torchsleuth.torch_core.repro.small_graph import GROWTH, LEAST_HALF
from torchsleuth.torch_core.repro.tiny import tiny_trial
from torchsleuth.torch_internals.schemas import writers

# What hangs for this long, and for this many times what a healthy part of it takes, is worth the question whether it
# hangs for all of its clock.
QUICK_CLOCK = 2.0
SLACK = 5.0
# A healthy compile of so many calls takes twice as long as one of a single call.
TWICE_AS_LONG = 20
# A script has to hang on a machine that is somewhat faster by then, too.
ROOM_FOR_SPEED = 1.2
# The calls of a graph that has been made small.
FEW_CALLS = 10
# Of the time that is left, what the question may take whether less of the compiler would do.
SHARE_FOR_ASKING = 0.1
# And what one about most of the graph may take: whether it still fails without the calls that were found.
SHARE_FOR_MAKING_SURE = 0.25
# One call, for each level.
TINY = {"aot": "torch.ops.aten.abs.default(a)", "dynamo": "torch.abs(a)"}


class AsksTrials(Oracle[S]):
    """What the oracles of graphs and of programs share: states are asked side by side, and outcomes are judged."""

    expected: Signature

    def submit(self, state: S) -> Future[Outcome]:
        """Asks about one state."""
        raise NotImplementedError

    def judge(self, outcome: Outcome, state: S) -> bool:
        """Whether an outcome shows what is looked for."""
        raise NotImplementedError

    @property
    def failing_is_slow(self) -> bool:
        """Whether it takes longer to see a failure than to see none."""
        return self.expected.kind == "hang"

    def __call__(self, states: Sequence[S]) -> list[bool | None]:
        return self._answers(states, every=False)

    def each(self, states: Sequence[S]) -> list[bool | None]:
        """All answers; where a failure takes long to see, what comes after one is still given up."""
        return self._answers(states, every=not self.failing_is_slow)

    def _answers(self, states: Sequence[S], every: bool) -> list[bool | None]:
        answers: list[bool | None] = []
        for ticket, state in zip([self.submit(state) for state in states], states):
            if True in answers and not every:
                ticket.cancel()
                answers.append(None)
            else:
                answers.append(self.judge(ticket.result(), state))
        return answers


@dataclass
class TrialOracle(AsksTrials[State]):
    """Asks trials whether states fail as `expected`, and what else a search must know of a state.

    Used as `TrialOracle(questions, signature).holding_to(state)([state])`.
    """

    questions: Questions
    expected: Signature
    limits: Limits | None = None
    # When the search is to end, of time.monotonic.
    deadline: float | None = None
    trial_seconds: float = 0.0
    also: dict[str, tuple[Signature, State]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    suspects: Sequence[str] = ()
    # What the last state that failed printed, and how far rounding alone moves the results of each that failed.
    text: str = ""
    tolerances: dict[str, Tolerances] = field(default_factory=dict)
    # Whether what fails has to pass without the compiler, as the original does.
    must_pass_in_eager: bool = False
    # How often the failure comes, where it comes only sometimes.
    rate: FailureRate | None = None
    # What is left out of the compiler, where that answers sooner.
    change: Change | None = None
    # Whether it is the growth of the seconds that is wrong; then a short clock tells.
    grows: bool = False

    def holding_to(self, original: State) -> TrialOracle:
        """This oracle; where the original passes without the compiler, what fails must do so, too.

        A wrong result is one by comparison with eager, so that one passes there anyway.
        """
        compared = self.expected.kind == "accuracy"
        self.must_pass_in_eager = not compared and self.questions.passes_in_eager(original, self.expected)
        return self

    def look_again(self, state: State, failed: bool) -> None:
        """Asks a few times more about a state; raises `FlakyFailure` where it does not always answer alike.

        A hang takes its whole clock each time, so it is taken at its word.
        """
        odd = not failed and (self.also or self.errors)
        if odd or self.failing_is_slow or self.rate is not None:
            return
        seen = FailureRate(int(failed), 1)
        found = measured(self.workers, self.trial(state), seen, self._limits(state))
        if found.flaky:
            self.rate = found
            self.workers.repeats = found.repeats
            raise FlakyFailure(found)

    @property
    def workers(self) -> TrialQueue:
        return self.questions.workers

    def recording(self, state: State) -> Recording:
        """What every node of the state yields in eager, from a trial."""
        return self.questions.recording(state)

    def tolerances_of(self, state: State) -> Tolerances:
        """How far rounding alone moves the results of a state, where that matters."""
        if self.expected.kind != "accuracy":
            return Tolerances()
        key = state.key
        if key not in self.tolerances:
            self.tolerances[key] = self.questions.tolerances(state)
        return self.tolerances[key]

    @property
    def seconds_to_fail(self) -> float:
        """What it takes to see a failure of a small graph, where that is known: a hang's clock."""
        return 0.0 if self.limits is None or not self.failing_is_slow else self._clock(self.limits, FEW_CALLS)

    @property
    def names_outputs(self) -> bool:
        """Whether a failure says which of the results are wrong."""
        return self.expected.kind == "accuracy"

    def first_passing(self, states: Sequence[State]) -> int | None:
        """The first state, in time, that passes; the others are given up. None where all fail."""
        tickets = {self.submit(state): place for place, state in enumerate(states)}
        for ticket in as_completed(tickets):
            if not self.judge(ticket.result(), states[tickets[ticket]]):
                for other in tickets:
                    other.cancel()
                return tickets[ticket]
        return None

    def quicker(self, state: State) -> TrialOracle | None:
        """One without what the failure does not need: wrong results without code, hangs without most of the waiting."""
        if self.change is not None or self.rate is not None:
            return None
        if self.expected.kind == "accuracy":
            ways = [self._under(change) for change in WITHOUT_CODE]
        elif self.expected.kind == "hang":
            short = self.short_limits(state)
            needed = Change(stop_after="codegen") if self.expected.phase == "compile" else Change()
            ways = [] if short is None else [self._under(needed, short)]
        else:
            return None
        now, enough = time.monotonic(), self.deadline
        if enough is not None and not self.failing_is_slow:
            enough = now + SHARE_FOR_ASKING * (enough - now)
        tickets = [
            self.workers.submit(way.trial(state), limits=within(way._limits(state), enough)) for way in ways
        ]
        found = None
        for way, ticket in zip(ways, tickets):
            if found is not None:
                ticket.cancel()
            elif way.judge(ticket.result(), state):
                found = way
        return found

    def settles_for(self, quicker: Oracle[State], half: State) -> bool:
        """Asks as `quicker` from here on, if its clock has explosive growth in it: half takes no quarter of that."""
        if not isinstance(quicker, TrialOracle) or quicker.limits is None or self.expected.phase != "compile":
            return False
        if calls_of(half.graph) < LEAST_HALF:
            return False
        short = replace(quicker.limits, compile=quicker.limits.compile / GROWTH)
        outcome = self.workers.submit(quicker.trial(half), limits=within(short, self.deadline)).result()
        if outcome.signature is not None or outcome.error is not None:
            return False
        self.limits, self.change, self.grows = quicker.limits, quicker.change, True
        return True

    def in_a_share_of_the_time(self) -> TrialOracle:
        """This oracle with a fraction of the time that is left."""
        if self.deadline is None:
            return self
        now = time.monotonic()
        soon = now + SHARE_FOR_MAKING_SURE * (self.deadline - now)
        return replace(self, deadline=soon, also={}, errors=[])

    def _under(self, change: Change, limits: Limits | None = None) -> TrialOracle:
        return replace(self, change=change, limits=limits or self.limits, also={}, errors=[])

    def short_limits(self, state: State) -> Limits | None:
        """Of a hang: a clock by what something healthy takes, measured now; None where that is hardly shorter.

        A compile has to stop before the C++ compiler to be known by it.
        """
        limits = self.limits or self.workers.limits
        normal = self._healthy_seconds(state, limits)
        clock = max(QUICK_CLOCK, SLACK * (normal or 0.0))
        if normal is None or 2 * clock > self._clock(limits, calls_of(state.graph)):
            return None
        compiling = limits.compile if self.expected.phase == "run" else clock
        return replace(limits, compile=compiling, run=clock)

    def _healthy_seconds(self, state: State, limits: Limits) -> float | None:
        """What a state would take if it did not hang: in eager, or up to the end of its passes.

        Where the passes hang, what a tiny compile takes, for its number of calls. None where a compile cannot be
        stopped before the C++ compiler has its turn, whose seconds depend on too much.
        """
        if self.expected.phase == "run":
            return self.questions.eager_seconds(state)
        level = state.settings.level
        differentiated = any(spec.requires_grad for _, spec in state.tensors)
        if level != "aot" and differentiated:
            return None
        trial = replace(self.trial(state), change=WITHOUT_CODE[0])
        healthy = self.workers.run(trial, limits=replace(limits, compile=self.seconds_to_fail))
        if healthy.error is not None:
            return None
        if healthy.signature is None:
            return healthy.had
        call = TINY[level]
        tiny = self.workers.run(tiny_trial(level, call, "codegen"), limits=self.workers.limits, fresh=True)
        return None if tiny.error is not None else tiny.had * (1 + calls_of(state.graph) / TWICE_AS_LONG)

    def trial(self, state: State) -> Trial:
        """The question that a state stands for."""
        trial = trial_of(state, self.expected, self.questions.store)
        trial = replace(trial, must_pass_in_eager=self.must_pass_in_eager)
        return trial if self.change is None else replace(trial, change=self.change)

    def submit(self, state: State) -> Future[Outcome]:
        return self.workers.submit(self.trial(state), limits=self._limits(state))

    def _limits(self, state: State) -> Limits:
        """What is cut short by the end of the search's time says nothing; a hang has a clock by its calls."""
        limits = self.limits or self.workers.limits
        if self.failing_is_slow and self.limits is not None:
            clock = self._clock(limits, calls_of(state.graph))
            compiling = limits.compile if self.expected.phase == "run" else clock
            limits = replace(limits, compile=compiling, run=min(limits.run, clock))
        return within(limits, self.deadline)

    def _clock(self, limits: Limits, calls: int) -> float:
        own = ROOM_FOR_SPEED * (LEAST_HANG + SECONDS_A_CALL * calls)
        return min(limits.seconds(self.expected.phase), own)

    def judge(self, outcome: Outcome, state: State) -> bool:
        self.trial_seconds += outcome.seconds
        if outcome.error is not None:
            self.errors.append(outcome.error)
        if outcome.fails_like(self.expected):
            self.suspects = _wrong_nodes(outcome.signature, state)
            self.text = outcome.text
            if outcome.seen.tolerances is not None:
                self.tolerances[state.key] = Tolerances(**outcome.seen.tolerances)
            return True
        cut_short = outcome.signature is not None and outcome.signature.kind == "hang" != self.expected.kind
        if cut_short:
            self.errors.append("a trial was not done in its time (--budget)")
        in_eager = outcome.signature is not None and outcome.signature.phase == EAGER
        if outcome.signature is not None and not (state.interpreted or cut_short or in_eager):
            self.also.setdefault(fingerprint(outcome.signature), (outcome.signature, state))
        return False


def _wrong_nodes(signature: Signature | None, state: State) -> tuple[str, ...]:
    """The nodes that yield the results which a wrong one names: outputs, and what was written into inputs."""
    outputs = state.graph.graph.output_node().args[0]
    written = writers(state.graph)
    found: list[str] = []
    for path in signature.outputs if signature else ():
        match = re.fullmatch(r"(outputs|inputs)\[(\d+)\].*", path)
        place = int(match[2]) if match else -1
        if match and match[1] == "outputs" and place < len(outputs):
            found.append(outputs[place].name)
        elif match and match[1] == "inputs" and place < len(state.inputs):
            found += written.get(state.inputs[place].name, [])
    return tuple(found)
