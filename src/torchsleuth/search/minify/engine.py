"""The one place that asks the oracle: it remembers, counts, keeps time, and accepts only what is smaller.

Reducers describe; this runs. Edits are tried all together first, because most of what makes a graph large has
nothing to do with its failure, then one by one. A dial is turned to its lowest, else the way there is bisected.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Generic

from torchsleuth.search.minify.contract import (
    Answers,
    Dial,
    Edit,
    Listener,
    OutOfBudget,
    Reducer,
    ReducerStatistics,
    S,
    Silence,
    as_oracle,
    size_of,
    state_key,
)

Make = Callable[[], S | None]


class Engine(Generic[S]):
    """Asks, remembers and counts: `Engine(oracle, state).first("shapes", [("halve", make)])`."""

    def __init__(
        self,
        oracle: Answers[S],
        state: S,
        *,
        width: int = 1,
        deadline: float | None = None,
        most_queries: int | None = None,
        listener: Listener | None = None,
    ) -> None:
        self.oracle = as_oracle(oracle)
        self.best = state
        self.width = max(1, width)
        self.deadline = deadline
        self.most_queries = most_queries
        self.listener = listener or Silence()
        self.queries = 0
        self.known: dict[str, bool] = {}
        # Every state that was the best one for a while.
        self.accepted: list[S] = []
        self._counts: dict[str, list[float]] = {}

    def first(self, reducer: str, candidates: Sequence[tuple[str, Make[S]]]) -> tuple[int, S] | None:
        """The first candidate, in order, that fails; as many at once as there are workers."""
        return next(
            ((at, state) for at, state, failed in self._rounds(reducer, candidates, False) if failed), None
        )

    def each(self, reducer: str, candidates: Sequence[tuple[str, Make[S]]]) -> dict[int, tuple[S, bool]]:
        """The answers of the rounds up to the first with a failure, all of that round included, by place."""
        rounds = self._rounds(reducer, candidates, True)
        return {at: (state, failed) for at, state, failed in rounds if failed is not None}

    def _rounds(
        self, reducer: str, candidates: Sequence[tuple[str, Make[S]]], every: bool
    ) -> Iterator[tuple[int, S, bool | None]]:
        """Candidates with their answers, a round at a time, until one has failed."""
        waiting: list[tuple[int, str, S]] = []
        for place, (what, make) in enumerate(candidates):
            state = make()
            if state is not None:
                waiting.append((place, what, state))
            if len(waiting) == self.width or (place == len(candidates) - 1 and waiting):
                answers = self._ask(reducer, [(what, state) for _, what, state in waiting], every)
                yield from ((at, state, failed) for (at, _, state), failed in zip(waiting, answers))
                if True in answers:
                    return
                waiting = []

    def fails(self, reducer: str, what: str, state: S) -> bool:
        """Whether one state fails."""
        return bool(self._ask(reducer, [(what, state)])[0])

    def begins(self, reducer: str) -> bool:
        """Says that a reducer has its turn; False where it is to be left out."""
        return self.listener.begins(f"making the graph smaller: {reducer}")

    def accept(self, reducer: str, state: S) -> S:
        """Makes a failing state the best one, if it is smaller than what stood there."""
        if size_of(state) < size_of(self.best):
            counts = self._counts.setdefault(reducer, [0, 0, 0, 0.0])
            counts[1] += 1
            counts[2] += size_of(self.best)[0] - size_of(state)[0]
            self.best = state
            self.accepted.append(state)
            self.listener.smaller(reducer, state)
        return self.best

    def turn_to(self, reducer: str, state: S) -> S:
        """Makes a failing state the best one, whatever stood there: `engine.turn_to("nodes", state)`."""
        if state is not self.best:
            self.best = state
            self.accepted.append(state)
            self.listener.smaller(reducer, state)
        return self.best

    def statistics(self) -> tuple[ReducerStatistics, ...]:
        """What each reducer did, in the order in which they first ran."""
        return tuple(
            ReducerStatistics(name, int(q), int(s), int(c), round(t, 3))
            for name, (q, s, c, t) in self._counts.items()
        )

    def _ask(
        self, reducer: str, candidates: Sequence[tuple[str, S]], every: bool = False
    ) -> list[bool | None]:
        keys = [state_key(state) for _, state in candidates]
        new = [place for place, key in enumerate(keys) if key not in self.known]
        if new:
            if self.deadline is not None and time.monotonic() + self.oracle.seconds_to_fail > self.deadline:
                raise OutOfBudget("the time is used up")
            if self.most_queries is not None and self.queries >= self.most_queries:
                raise OutOfBudget("the number of questions is used up")
            started = time.monotonic()
            # Most oracles answer all they are asked; one that gives up what comes after a failure need not.
            ask = self.oracle.each if every else self.oracle
            answers = list(ask([candidates[place][1] for place in new]))
            counts = self._counts.setdefault(reducer, [0, 0, 0, 0.0])
            counts[0] += len(new)
            counts[3] += time.monotonic() - started
            self.queries += len(new)
            for place, failed in zip(new, answers):
                if failed is not None:
                    self.known[keys[place]] = failed
            self.listener.asked(reducer, candidates[new[0]][0], answers)
        return [self.known.get(key) for key in keys]


def settle(engine: Engine[S], name: str, reducer: Reducer[S], state: S, together: bool = True) -> S:
    """Applies what a reducer proposes until nothing of it holds any more; `together` tries all of it at once first.

    Used as `settle(engine, "outputs", drop_outputs, state)`.
    """
    while True:
        edits = list(reducer(state))
        if together and len(edits) > 1:
            changed = combined(edits, state)
            if changed is not None and engine.fails(name, "all together", changed):
                state = engine.accept(name, changed)
                continue
        before = size_of(state)
        state = _one_by_one(engine, name, edits, state)
        if size_of(state) == before:
            return state


def _one_by_one(engine: Engine[S], name: str, edits: Sequence[Edit[S] | Dial[S]], state: S) -> S:
    """Each edit on top of those that held; several are asked at once where there are workers for it."""
    place = 0
    while place < len(edits):
        edit = edits[place]
        if isinstance(edit, Dial):
            state = _turned(engine, name, edit, state)
            place += 1
            continue
        batch = list(itertools.takewhile(lambda e: isinstance(e, Edit), edits[place : place + engine.width]))
        found = engine.first(name, [(e.what, partial(_edited, e, state)) for e in batch])
        if found is not None:
            state = engine.accept(name, found[1])
        place += len(batch) if found is None else found[0] + 1
    return state


def _edited(edit: Edit[S] | Dial[S], state: S) -> S | None:
    candidate = edit.apply(state)
    return candidate if candidate is not None and _smaller(candidate, state) else None


def combined(edits: Iterable[Edit[S] | Dial[S]], state: S) -> S | None:
    """All edits on top of each other, those left out that do not fit or do not help; None where none does."""
    changed = None
    for edit in edits:
        nearer = edit.apply(changed or state)
        if nearer is not None and _smaller(nearer, changed or state):
            changed = nearer
    return changed


def _turned(engine: Engine[S], name: str, dial: Dial[S], state: S) -> S:
    """Turns a dial as low as it goes.

    Its two ends come first, because most dials go all the way or not at all. Where it can be turned a little, the rest
    of the way is bisected; where it cannot, the number may matter by what divides it.
    """

    def at(number: int) -> S | None:
        candidate = dial.turn(state, number)
        return candidate if candidate is not None and _smaller(candidate, state) else None

    def ask(numbers: Sequence[int]) -> tuple[int, S] | None:
        return engine.first(name, [(f"{dial.what} to {number}", partial(at, number)) for number in numbers])

    lowest_of = partial(lowest, ask, engine.width)
    held: S | None = None
    ends = sorted({dial.low, dial.high - 1}) if dial.low < dial.high else []
    found = ask(ends)
    if found is not None and found[0] == 0:
        held = found[1]
    elif found is not None:
        upper, held = ends[-1], found[1]
        octaves = [number for number in _powers(upper) if dial.low < number]
        place, better = lowest_of(octaves)
        lower = octaves[place - 1] if place else dial.low
        upper, held = (octaves[place], better) if better is not None else (upper, held)
        held = lowest_of(range(lower + 1, upper))[1] or held
    elif len(ends) > 1:
        coarse = sorted({*(p for p in _powers(dial.high) if dial.high % p == 0), dial.high // 2} - {*ends})
        found = ask(coarse[-2:])
        if found is not None:
            finer = [number for number in coarse if dial.low < number < coarse[-2:][found[0]]]
            held = lowest_of(finer)[1] or found[1]
    return state if held is None else engine.accept(name, held)


def lowest(
    ask: Callable[[Sequence[int]], tuple[int, S] | None], width: int, numbers: Sequence[int]
) -> tuple[int, S | None]:
    """The place of the first number that fails, where all after it do, and its state; past the end for none.

    >>> lowest(lambda asked: next(((i, state) for i, n in enumerate(asked) if n > 5), None), 1, range(9))[0]
    6
    """
    lower, upper, held = -1, len(numbers), None
    while upper - lower > 1:
        between = _spaced(lower, upper, width)
        found = ask([numbers[place] for place in between])
        if found is None:
            lower = between[-1]
        else:
            lower = between[found[0] - 1] if found[0] else lower
            upper, held = between[found[0]], found[1]
    return upper, held


def _powers(limit: int) -> list[int]:
    """The powers of two below a number.

    >>> _powers(9)
    [1, 2, 4, 8]
    """
    return [1 << place for place in range(limit.bit_length()) if 1 << place < limit]


def _spaced(lower: int, upper: int, count: int) -> list[int]:
    """Up to `count` numbers that part the open interval evenly.

    >>> _spaced(0, 4, 1)
    [2]
    """
    numbers = [lower + (upper - lower) * part // (count + 1) for part in range(1, count + 1)]
    return sorted({number for number in numbers if lower < number < upper}) or [lower + 1]


def _smaller(candidate: S, state: S) -> bool:
    return size_of(candidate) < size_of(state)
