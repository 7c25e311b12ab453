"""The one place that asks the oracle: it remembers, counts, keeps time, and accepts only what is smaller.

Reducers describe; this runs. Edits are tried all together first, because most of what makes a graph large has
nothing to do with its failure, then one by one. A dial is turned to its lowest, else up in doubling steps, and
the rest of the way is bisected.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from torchsleuth.graphs.cut import calls_of
from torchsleuth.minify.contract import (
    Dial,
    Edit,
    Listener,
    Oracle,
    OutOfBudget,
    Reducer,
    ReducerStatistics,
    Silence,
    State,
)
from torchsleuth.minify.order import size_of

Make = Callable[[], State | None]


class Engine:
    """Asks, remembers and counts: `Engine(oracle, state).first("shapes", [("halve", make)])`."""

    def __init__(
        self,
        oracle: Oracle,
        state: State,
        *,
        width: int = 1,
        deadline: float | None = None,
        most_queries: int | None = None,
        listener: Listener | None = None,
    ) -> None:
        self.oracle = oracle
        self.best = state
        self.width = max(1, width)
        self.deadline = deadline
        self.most_queries = most_queries
        self.listener = listener or Silence()
        self.queries = 0
        self.known: dict[str, bool] = {}
        self.passing: list[tuple[str, State]] = []
        self._counts: dict[str, list[float]] = {}

    def first(self, reducer: str, candidates: Sequence[tuple[str, Make]]) -> tuple[int, State] | None:
        """The first candidate, in order, that fails; as many at once as there are workers."""
        waiting: list[tuple[int, str, State]] = []
        for place, (what, make) in enumerate(candidates):
            state = make()
            if state is not None:
                waiting.append((place, what, state))
            if len(waiting) == self.width or (place == len(candidates) - 1 and waiting):
                answers = self._ask(reducer, [(what, state) for _, what, state in waiting])
                for (at, _, candidate), failed in zip(waiting, answers):
                    if failed:
                        return at, candidate
                waiting = []
        return None

    def fails(self, reducer: str, what: str, state: State) -> bool:
        """Whether one state fails."""
        return bool(self._ask(reducer, [(what, state)])[0])

    def accept(self, reducer: str, state: State) -> State:
        """Makes a failing state the best one, if it is smaller than what stood there."""
        if size_of(state) < size_of(self.best):
            counts = self._counts.setdefault(reducer, [0, 0, 0, 0.0])
            counts[1] += 1
            counts[2] += calls_of(self.best.graph) - calls_of(state.graph)
            self.best = state
            self.listener.smaller(reducer, state)
        return self.best

    def statistics(self) -> tuple[ReducerStatistics, ...]:
        """What each reducer did, in the order in which they first ran."""
        return tuple(
            ReducerStatistics(name, int(q), int(s), int(c), round(t, 3))
            for name, (q, s, c, t) in self._counts.items()
        )

    def _ask(self, reducer: str, candidates: Sequence[tuple[str, State]]) -> list[bool | None]:
        keys = [state_key(state) for _, state in candidates]
        new = [place for place, key in enumerate(keys) if key not in self.known]
        if new:
            if self.deadline is not None and time.monotonic() > self.deadline:
                raise OutOfBudget("the time is used up")
            if self.most_queries is not None and self.queries >= self.most_queries:
                raise OutOfBudget("the number of questions is used up")
            started = time.monotonic()
            answers = list(self.oracle([candidates[place][1] for place in new]))
            counts = self._counts.setdefault(reducer, [0, 0, 0, 0.0])
            counts[0] += len(new)
            counts[3] += time.monotonic() - started
            self.queries += len(new)
            for place, failed in zip(new, answers):
                if failed is None:
                    continue
                self.known[keys[place]] = failed
                if not failed:
                    self.passing.append((f"{reducer}: {candidates[place][0]}", candidates[place][1]))
            self.listener.asked(reducer, candidates[new[0]][0], answers)
        return [self.known.get(key) for key in keys]


def settle(engine: Engine, name: str, reducer: Reducer, state: State) -> State:
    """Applies what a reducer proposes until nothing of it holds any more.

    >>> settle(engine, "outputs", drop_outputs, state)
    """
    while True:
        edits = list(reducer(state))
        if len(edits) > 1:
            together = combined(edits, state)
            if together is not None and engine.fails(name, "all together", together):
                state = engine.accept(name, together)
                continue
        before = size_of(state)
        for edit in edits:
            state = (
                _turned(engine, name, edit, state)
                if isinstance(edit, Dial)
                else _tried(engine, name, edit, state)
            )
        if size_of(state) == before:
            return state


def combined(edits: Iterable[Edit | Dial], state: State) -> State | None:
    """All edits on top of each other, those left out that do not fit or do not help; None where none does."""
    changed = None
    for edit in edits:
        nearer = edit.apply(changed or state)
        if nearer is not None and _smaller(nearer, changed or state):
            changed = nearer
    return changed


def _tried(engine: Engine, name: str, edit: Edit, state: State) -> State:
    candidate = edit.apply(state)
    if candidate is None or not _smaller(candidate, state) or not engine.fails(name, edit.what, candidate):
        return state
    return engine.accept(name, candidate)


def _turned(engine: Engine, name: str, dial: Dial, state: State) -> State:
    """Turns a dial as low as it goes: the lowest first, then doubling up from there, then bisecting."""

    def at(number: int) -> State | None:
        candidate = dial.turn(state, number)
        if candidate is None or not _smaller(candidate, state):
            return None
        return candidate if engine.fails(name, f"{dial.what} to {number}", candidate) else None

    lower, number = dial.low - 1, dial.low
    while number < dial.high:
        held = at(number)
        if held is not None:
            break
        lower, number = number, max(number * 2, number + 1)
    else:
        held, number = None, dial.high
    upper = number
    while upper - lower > 1:
        middle = (lower + upper) // 2
        candidate = at(middle)
        if candidate is None:
            lower = middle
        else:
            held, upper = candidate, middle
    return state if held is None else engine.accept(name, held)


def _smaller(candidate: State, state: State) -> bool:
    return size_of(candidate) < size_of(state)


def state_key(state: State) -> str:
    """Equal for states that ask the same question."""
    graphs = [str(part.graph) for part in state.graph.modules() if isinstance(part, torch.fx.GraphModule)]
    values = [_value_key(i.value) for i in state.inputs]
    parts: list[Any] = [graphs, state.description.to_json(), values, dict(state.settings)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _value_key(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    if value.untyped_storage().nbytes() > 1 << 20:
        return f"at {value.untyped_storage().data_ptr()} {value._version}"
    flat = torch.empty(0, dtype=torch.uint8, device=value.device).set_(value.untyped_storage()).cpu()
    return hashlib.sha256(bytes(flat.tolist())).hexdigest()
