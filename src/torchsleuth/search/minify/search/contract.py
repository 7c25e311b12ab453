"""What a reduction is made of: a State, Edits that make it smaller, and an Oracle that says whether it still fails.

A reducer is a pure function from a state to edits; an edit names what it does and gives the edited state, or
None where it does not fit any more. One engine asks the oracle, counts and keeps time; it accepts an edit only
if the result is smaller in one total order, so every search ends and two runs take the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch

from torchsleuth.core.cases.record import CompileSettings, Embedded
from torchsleuth.torch_core.graphs.recording import Recording
from torchsleuth.torch_core.tensors.specs import InputsDescription, ScalarSpec, SymbolSpec, TensorSpec

# What is made smaller: a graph as a State here, a program as text in `minify.python`.
S = TypeVar("S")


@dataclass(frozen=True)
class Input:
    """One input of a graph: what it looks like, and its value; None where any value of this form will do."""

    name: str
    spec: TensorSpec | ScalarSpec
    value: Any = None

    @property
    def is_tensor(self) -> bool:
        return isinstance(self.spec, TensorSpec)


@dataclass(frozen=True)
class State:
    """A graph with its inputs and the settings it is compiled under; nothing in it is ever changed in place.

    With `any_values` the failure does not depend on values. `static_names` are the inputs that AOTAutograd calls static
    (parameters, mostly), None where it was not asked; `interpreted` has the lowered graph run without generated code.
    """

    graph: torch.fx.GraphModule
    inputs: tuple[Input, ...]
    symbols: Mapping[str, SymbolSpec] = field(default_factory=dict)
    settings: CompileSettings = field(default_factory=CompileSettings)
    embedded: Embedded = field(default_factory=Embedded)
    any_values: bool = False
    static_names: tuple[str, ...] | None = None
    interpreted: bool = False
    # Where the tensors that the graph holds lie, by name; in the process of a search they lie on the CPU.
    constant_devices: Mapping[str, str] = field(default_factory=dict)

    @property
    def description(self) -> InputsDescription:
        """The inputs as they go to a trial, without values."""
        return InputsDescription(tuple(i.spec for i in self.inputs), self.symbols)

    def having(self, **changes: Any) -> State:
        """This state with other fields: `state.having(symbols={})`."""
        return replace(self, **changes)

    def setting(self, **changes: Any) -> State:
        """This state under other settings: `state.setting(config={})`."""
        return replace(self, settings=replace(self.settings, **changes))


@dataclass(frozen=True)
class Edit(Generic[S]):
    """One step towards a smaller state, as data: what it does, and the function and arguments that do it."""

    what: str
    function: Callable[..., S | None]
    arguments: tuple[Any, ...] = ()

    def apply(self, state: S) -> S | None:
        """The edited state, or None where the edit does not fit."""
        return self.function(state, *self.arguments)


@dataclass(frozen=True)
class Dial(Generic[S]):
    """A number that may be turned down, from `high` where it stands to `low`."""

    what: str
    low: int
    high: int
    function: Callable[..., S | None]
    arguments: tuple[Any, ...] = ()

    def turn(self, state: S, number: int) -> S | None:
        """The state with the number set, or None where that does not fit."""
        return self.function(state, number, *self.arguments)

    def apply(self, state: S) -> S | None:
        """The dial at its lowest."""
        return self.turn(state, self.low)


Reducer = Callable[[S], Iterable[Edit[S] | Dial[S]]]

Answers = Callable[[Sequence[S]], Sequence[bool | None]]


@runtime_checkable
class Oracle(Protocol):
    """Says which states fail the way the original did; one derived from this has no more to say, unless it does so."""

    # The nodes whose results were wrong in the last state that failed.
    suspects: Sequence[str] = ()

    def __call__(self, states: Sequence[Any]) -> Sequence[bool | None]:
        """Whether each state fails; None where it was not worth finding out, because an earlier one does."""

    def each(self, states: Sequence[Any]) -> Sequence[bool | None]:
        """The same, for whoever wants all answers."""
        return self(states)

    def first_passing(self, states: Sequence[Any]) -> int | None:
        """The place of a state that passes, the first in time; None where all fail."""
        return next((place for place, failed in enumerate(self.each(states)) if failed is False), None)

    def recording(self, state: Any) -> Recording | None:
        """What every node of the state yields in eager; None where whoever searches may run it to find out."""
        return None

    def quicker(self, state: State) -> Oracle | None:
        """One that answers sooner, mostly alike, by less than all of the compiler; None where `state` passes there."""
        return None

    def in_a_share_of_the_time(self) -> Oracle:
        """One for a question that is dear and only makes sure: what is not answered soon passes there."""
        return self

    @property
    def failing_is_slow(self) -> bool:
        """Whether it takes longer to see a failure than to see none."""
        return False

    @property
    def seconds_to_fail(self) -> float:
        """What it takes at least to see a failure."""
        return 0.0

    @property
    def names_outputs(self) -> bool:
        """Whether a failure says which of the results are wrong, as `suspects`."""
        return False


@dataclass(frozen=True)
class _FunctionOracle(Oracle):
    answers: Answers

    def __call__(self, states: Sequence[Any]) -> Sequence[bool | None]:
        return self.answers(states)


def as_oracle(answers: Answers) -> Oracle:
    """An oracle as it is, or one of a plain function.

    >>> as_oracle(lambda states: ["relu" in s.graph.code for s in states]).names_outputs
    False
    """
    return answers if isinstance(answers, Oracle) else _FunctionOracle(answers)


class Listener(Protocol):
    """Someone who is told how the search goes; every method may do nothing, as these do."""

    def begins(self, doing: str) -> bool:
        """Told what comes next; False where that is to be left out."""
        return True

    def started(self, state: Any) -> None:
        return

    def asked(self, reducer: str, what: str, failed: Sequence[bool | None]) -> None:
        return

    def smaller(self, reducer: str, state: Any) -> None:
        return

    def said(self, text: str) -> None:
        return


class Silence(Listener):
    """A listener that does nothing."""


@dataclass(frozen=True)
class ReducerStatistics:
    """What one reducer did: questions asked, edits that held, calls removed, seconds spent."""

    reducer: str
    queries: int
    successes: int
    calls_removed: int
    seconds: float


@dataclass(frozen=True)
class Reduction:
    """The end of a search: the smallest state found, and how it was found. `complete` is False where time ran out."""

    state: State
    calls: int
    queries: int
    seconds: float
    complete: bool
    statistics: tuple[ReducerStatistics, ...] = ()


class OutOfBudget(Exception):
    """The time or the number of questions is used up; the best state so far stands."""
