"""What a search has to know and may not find out itself, asked of trials: values, shapes, noise, definitions.

The host runs no kernel, no fake kernel and no code of the user's; a trial that dies while it answers costs an answer,
not the host. Each thing is asked once and kept as long as the host lives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchsleuth.child.trial import Outcome, Question, Trial
from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.record import CompileSettings, GraphRecord
from torchsleuth.core.change_table import UNCOMPILED
from torchsleuth.core.processes.limits import Limits, within
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.search.minify.search.contract import State
from torchsleuth.search.minify.search.state_key import state_key
from torchsleuth.search.minify.states import Shapes
from torchsleuth.search.minify.trial_of_state import trial_of
from torchsleuth.search.workers.queue import TrialQueue
from torchsleuth.torch_core.compare.verdict.tolerances import Tolerances
from torchsleuth.torch_core.graphs.recording import Recording, recording_from_json

# A graph that takes longer in eager, for which no clock was given, is taken for hung.
EAGER_SECONDS = 120.0
# Nothing in particular is expected of these.
_ANYTHING = Signature("runtime_error", "run")


class NoAnswer(SleuthError):
    """A trial could not answer; says what it was asked and how it ended.

    `died` where its process was lost over the question; else it could not be asked here.
    """

    def __init__(self, said: str, *, died: bool = False) -> None:
        super().__init__(said)
        self.died = died


@dataclass
class Questions:
    """Asks `workers`; values lie in the folder `store`, which is the host's own and goes with it.

    `begins` is told what comes next and says False where that is to be left out; `deadline` is of time.monotonic.
    """

    workers: TrialQueue
    store: Path
    begins: Callable[[str], bool] = lambda doing: True
    deadline: float | None = None
    _recordings: dict[str, Recording] = field(default_factory=dict)
    _shapes: dict[str, Shapes] = field(default_factory=dict)

    def recording(self, state: State) -> Recording:
        """What every node of a state's graph yields in eager; raises `NoAnswer` where that cannot be told.

        A graph that cannot be run is described by its shapes, where values play no part.
        """
        key = state_key(state)
        if key not in self._recordings:
            expected = Signature("compile_error", "compile") if state.any_values else _ANYTHING
            trial = trial_of(state, expected, self.store)
            try:
                told = self._told(trial, Question.RECORD, EAGER_SECONDS)
            except NoAnswer:
                if not state.any_values:
                    raise
                told = self._told(trial, Question.RECORD_FAKE, EAGER_SECONDS)
            self._recordings[key] = recording_from_json(told["recording"], state.graph, self.store)
        return self._recordings[key]

    def shapes(self, state: State) -> Shapes:
        """What each node of a state's graph yields by shape, and why they do not go together, where they do not."""
        key = state_key(state.having(inputs=tuple(replace(i, value=None) for i in state.inputs)))
        if key not in self._shapes:
            try:
                told = self._told(trial_of(state, _ANYTHING, self.store, values=False), Question.SHAPES)
                self._shapes[key] = Shapes(told["forms"], told["why"])
            except NoAnswer as why:
                self._shapes[key] = Shapes({}, str(why))
        return self._shapes[key]

    def tolerances(self, state: State) -> Tolerances:
        """How far rounding alone moves the results of a state; nothing where that cannot be measured."""
        try:
            told = self._told(trial_of(state, _ANYTHING, self.store), Question.NOISE, EAGER_SECONDS)
        except NoAnswer:
            return Tolerances()
        return Tolerances(**told["tolerances"])

    def passes_in_eager(self, state: State, expected: Signature) -> bool:
        """Whether a state's graph runs without the compiler; it is asked as triage asks, and answered once."""
        trial = trial_of(state, expected, self.store)
        in_eager = replace(trial, change=UNCOMPILED, stop_early=False)
        outcome = self.workers.run(in_eager, limits=self._limits(EAGER_SECONDS))
        return outcome.signature is None and outcome.error is None

    def eager_seconds(self, state: State) -> float | None:
        """How long a run without the compiler takes; None where that cannot be measured."""
        try:
            return self._told(trial_of(state, _ANYTHING, self.store), Question.EAGER_SECONDS)["seconds"]
        except NoAnswer:
            return None

    def schemas(self, record: GraphRecord, source: str, store: str | None) -> list[str]:
        """The schemas of the operators that a recorded graph calls, those of the user's own among them."""
        trial = Trial(
            source,
            _ANYTHING,
            CompileSettings(),
            constants=record.constants,
            inputs={"inputs": []},
            embedded=record.embedded.source,
            imports=(*record.imports, *record.embedded.imports),
            store=store,
        )
        return self._told(trial, Question.DEFINITIONS)["schemas"]

    def foreign_script(self, script: Path, store: Path) -> dict[str, Any]:
        """What a script of PyTorch's own minifier holds; its tensors go to `store`."""
        return self._told(Trial(str(script), _ANYTHING, store=str(store)), Question.FOREIGN_SCRIPT)

    def _told(self, trial: Trial, question: Question, seconds: float | None = None) -> dict[str, Any]:
        limits = self._limits(seconds)
        outcome = self.workers.run(replace(trial, question=question), limits=limits, fresh=True)
        if outcome.error is not None or outcome.signature is not None:
            died = outcome.signature is not None
            raise NoAnswer(f"{question.value}: {_how(outcome, limits)}", died=died)
        return dict(outcome.more)

    def _limits(self, seconds: float | None) -> Limits:
        limits = within(self.workers.limits, self.deadline)
        return limits if seconds is None else replace(limits, run=min(limits.run, seconds))


def _how(outcome: Outcome, limits: Limits) -> str:
    """How a trial ended that did not answer; nothing was compiled in it, as a signature's summary would say."""
    signature = outcome.signature
    if outcome.error is not None or signature is None:
        return outcome.error or ""
    if "ended_for" in outcome.more:
        return outcome.text.partition("\n")[0]
    if signature.kind == "hang":
        return f"it was not done after {limits.seconds(signature.phase):g} s"
    return f"its process ended with {signature.signal}"
