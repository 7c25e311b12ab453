"""What a reduction is made of: a State, Edits that make it smaller, and an Oracle that says whether it still fails.

A reducer is a pure function from a state to edits; an edit names what it does and gives the edited state, or
None where it does not fit any more. One engine asks the oracle, counts and keeps time; it accepts an edit only
if the result is smaller in one total order, so every search ends and two runs take the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from torchsleuth.tensors.specs import InputsDescription, ScalarSpec, SymbolSpec, TensorSpec


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

    `settings` are those facts of a written script that a reducer may simplify (level, config, compile_kwargs, ...).
    """

    graph: torch.fx.GraphModule
    inputs: tuple[Input, ...]
    symbols: Mapping[str, SymbolSpec] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def description(self) -> InputsDescription:
        """The inputs as they go to a trial, without values."""
        return InputsDescription(tuple(i.spec for i in self.inputs), self.symbols)

    def having(self, **changes: Any) -> State:
        """This state with other fields: `state.having(symbols={})`."""
        return replace(self, **changes)

    def setting(self, **changes: Any) -> State:
        """This state under other settings: `state.setting(config={})`."""
        return replace(self, settings={**self.settings, **changes})


@dataclass(frozen=True)
class Edit:
    """One step towards a smaller state, as data: what it does, and the function and arguments that do it."""

    what: str
    function: Callable[..., State | None]
    arguments: tuple[Any, ...] = ()

    def apply(self, state: State) -> State | None:
        """The edited state, or None where the edit does not fit."""
        return self.function(state, *self.arguments)


@dataclass(frozen=True)
class Dial:
    """A number that may be turned down, from `high` where it stands to `low`."""

    what: str
    low: int
    high: int
    function: Callable[..., State | None]
    arguments: tuple[Any, ...] = ()

    def turn(self, state: State, number: int) -> State | None:
        """The state with the number set, or None where that does not fit."""
        return self.function(state, number, *self.arguments)

    def apply(self, state: State) -> State | None:
        """The dial at its lowest."""
        return self.turn(state, self.low)


Reducer = Callable[[State], Iterable[Edit | Dial]]

# Which of these states fail the way the original did? None where it was not worth finding out, because an earlier
# one fails.
Oracle = Callable[[Sequence[State]], Sequence[bool | None]]


class Listener(Protocol):
    """Someone who is told how the search goes; every method may do nothing."""

    def started(self, state: State) -> None: ...

    def asked(self, reducer: str, what: str, failed: Sequence[bool | None]) -> None: ...

    def smaller(self, reducer: str, state: State) -> None: ...

    def said(self, text: str) -> None: ...


class Silence:
    """A listener that does nothing."""

    def started(self, state: State) -> None:
        pass

    def asked(self, reducer: str, what: str, failed: Sequence[bool | None]) -> None:
        pass

    def smaller(self, reducer: str, state: State) -> None:
        pass

    def said(self, text: str) -> None:
        pass


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
