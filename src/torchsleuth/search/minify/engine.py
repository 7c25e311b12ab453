"""The one place that asks the oracle: it remembers, counts, keeps time, and accepts only what is smaller.

Reducers describe; this runs. Edits are tried all together first, because most of what makes a graph large has
nothing to do with its failure, then one by one. A number is set to its lowest, else the way there is bisected.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Generic

from torchsleuth.search.minify.contract import (
    Answers,
    Edit,
    Listener,
    NumberEdit,
    OutOfBudget,
    Reducer,
    ReducerStatistics,
    Reduction,
    S,
    as_oracle,
)
from torchsleuth.search.minify.subsets import Subset

Make = Callable[[], S | None]


class Engine(Generic[S]):
    """Asks, remembers and counts: `Engine(oracle, state).first("shapes", [("halve", make)])`.

    `keep` puts each smaller state on disk before the search goes on; a listener learns of each step as `doing`.
    """

    def __init__(
        self,
        oracle: Answers[S],
        state: S,
        *,
        width: int = 1,
        budget_seconds: float | None = None,
        listener: Listener | None = None,
        keep: Callable[[S], None] = lambda state: None,
        doing: str = "making the graph smaller",
    ) -> None:
        self.oracle = as_oracle(oracle)
        self.best = state
        self.width = max(1, width)
        self.started = time.monotonic()
        self.deadline = None if budget_seconds is None else self.started + budget_seconds
        self.listener = listener or Listener()
        self.keep = keep
        self.doing = doing
        self.queries = 0
        self.known: dict[str, bool] = {}
        # Every state that was the best one for a while.
        self.accepted: list[S] = []
        self._counts: dict[str, list[float]] = {}
        # The search that this one is aside of.
        self._main: Engine[S] | None = None

    def aside(self, oracle: Answers[S], state: S, share: float = 1.0) -> Engine[S]:
        """A search beside this one, with a share of its time; what it finds has to hold here before it counts."""
        left = None if self.deadline is None else share * (self.deadline - time.monotonic())
        made = Engine(
            oracle, state, width=self.width, budget_seconds=left, listener=self.listener, doing=self.doing
        )
        made._main = self
        return made

    def count(self, questions: int) -> None:
        """Counts questions that were asked, in a search aside for the main one as well."""
        self.queries += questions
        if self._main is not None:
            self._main.count(questions)

    def run(self, work: Callable[[], None]) -> Reduction[S]:
        """What is left when the work is done, or the time is used up: `engine.run(lambda: work(engine)).state`."""
        self.listener.started(self.best)
        complete = True
        try:
            work()
        except (OutOfBudget, KeyboardInterrupt):
            complete = False
        statistics = tuple(
            ReducerStatistics(name, int(asked), int(held), int(calls), round(seconds, 3))
            for name, (asked, held, calls, seconds) in self._counts.items()
        )
        seconds = round(time.monotonic() - self.started, 3)
        return Reduction(self.best, self.best.size[0], self.queries, seconds, complete, statistics)

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
        return self.listener.begins(f"{self.doing}: {reducer}")

    def accept(self, reducer: str, state: S) -> S:
        """Makes a failing state the best one, if it is smaller than what stood there."""
        if state.size < self.best.size:
            counts = self._counts.setdefault(reducer, [0, 0, 0, 0.0])
            counts[1] += 1
            counts[2] += self.best.size[0] - state.size[0]
            self.turn_to(reducer, state)
        return self.best

    def turn_to(self, reducer: str, state: S) -> None:
        """Makes a failing state the best one, whatever stood there: `engine.turn_to("nodes", state)`."""
        if state is not self.best:
            self.best = state
            self.accepted.append(state)
            if self._main is None:
                self.keep(state)
                self.listener.smaller(reducer, state)

    def settle(self, name: str, reducer: Reducer[S], together: bool = True) -> S:
        """Applies what a reducer proposes until nothing of it holds any more; `together` tries all of it at once first.

        Used as `engine.settle("outputs", drop_outputs)`.
        """
        going_on = self.begins(name)
        while going_on:
            edits = list(reducer(self.best))
            if together and len(edits) > 1:
                changed = combined(edits, self.best)
                if changed is not None and self.fails(name, "all together", changed):
                    self.accept(name, changed)
                    continue
            before = self.best
            self._one_by_one(name, edits)
            going_on = self.best is not before
        return self.best

    def _one_by_one(self, name: str, edits: Sequence[Edit[S] | NumberEdit[S]]) -> None:
        """Each edit on top of those that held; several are asked at once where there are workers for it."""
        place = 0
        while place < len(edits):
            edit = edits[place]
            if isinstance(edit, NumberEdit):
                self._lower(name, edit)
                place += 1
                continue
            batch = itertools.takewhile(lambda e: isinstance(e, Edit), edits[place : place + self.width])
            candidates = [(e.what, partial(_smaller, e.apply, self.best)) for e in batch]
            found = self.first(name, candidates)
            if found is not None:
                self.accept(name, found[1])
            place += len(candidates) if found is None else found[0] + 1

    def _lower(self, name: str, edit: NumberEdit[S]) -> None:
        """Makes a number as small as it can be.

        Its two ends come first, because most go all the way or not at all. Where it can be a little smaller, the rest
        of the way is bisected; where it cannot, the number may matter by what divides it.
        """
        state = self.best

        def ask(numbers: Sequence[int]) -> tuple[int, S] | None:
            make = [partial(_smaller, partial(edit.at, number=number), state) for number in numbers]
            return self.first(name, [(f"{edit.what} to {n}", each) for n, each in zip(numbers, make)])

        lowest_of = partial(lowest, ask, self.width)
        held: S | None = None
        ends = sorted({edit.low, edit.high - 1}) if edit.low < edit.high else []
        found = ask(ends)
        if found is not None and found[0] == 0:
            held = found[1]
        elif found is not None:
            upper, held = ends[-1], found[1]
            octaves = [number for number in _powers(upper) if edit.low < number]
            place, better = lowest_of(octaves)
            lower = octaves[place - 1] if place else edit.low
            upper, held = (octaves[place], better) if better is not None else (upper, held)
            held = lowest_of(range(lower + 1, upper))[1] or held
        elif len(ends) > 1:
            coarse = sorted(
                {*(p for p in _powers(edit.high) if edit.high % p == 0), edit.high // 2} - {*ends}
            )
            found = ask(coarse[-2:])
            if found is not None:
                finer = [number for number in coarse if edit.low < number < coarse[-2:][found[0]]]
                held = lowest_of(finer)[1] or found[1]
        if held is not None:
            self.accept(name, held)

    def _ask(
        self, reducer: str, candidates: Sequence[tuple[str, S]], every: bool = False
    ) -> list[bool | None]:
        keys = [state.key for _, state in candidates]
        new = [place for place, key in enumerate(keys) if key not in self.known]
        if new:
            if self.deadline is not None and time.monotonic() + self.oracle.seconds_to_fail > self.deadline:
                raise OutOfBudget("the time is used up")
            started = time.monotonic()
            # Most oracles answer all they are asked; one that gives up what comes after a failure need not.
            ask = self.oracle.each if every else self.oracle
            answers = list(ask([candidates[place][1] for place in new]))
            counts = self._counts.setdefault(reducer, [0, 0, 0, 0.0])
            counts[0] += len(new)
            counts[3] += time.monotonic() - started
            self.count(len(new))
            for place, failed in zip(new, answers):
                if failed is not None:
                    self.known[keys[place]] = failed
            self.listener.asked(reducer, candidates[new[0]][0], answers)
        return [self.known.get(key) for key in keys]


class AsksSubsets(Generic[S]):
    """Asks whether parts of a state fail, and remembers what was answered: what `subsets` calls `Ask`.

    `make` gives the state of some of `count` elements, None where they make none; what fails becomes the best one where
    it `counts`.
    """

    def __init__(
        self,
        engine: Engine[S],
        reducer: str,
        count: int,
        make: Callable[[Subset], S | None],
        counts: Callable[[Subset], bool] = lambda subset: True,
    ) -> None:
        self.engine, self.reducer, self.count = engine, reducer, count
        self.make, self.counts = make, counts
        self.known: dict[Subset, bool] = {}

    def __call__(self, subsets: Sequence[Subset]) -> int | None:
        for place, subset in enumerate(subsets):
            if self.known.get(subset):
                return place
        unknown = [s for s in subsets if s not in self.known]
        found = self.engine.first(self.reducer, self.candidates(unknown))
        self.known |= dict.fromkeys(unknown[: None if found is None else found[0]], False)
        if found is None:
            return None
        self._note(unknown[found[0]], found[1])
        return subsets.index(unknown[found[0]])

    def each(self, subsets: Sequence[Subset]) -> list[bool | None]:
        """As above, with all that is known after the first round that has a failure."""
        if not any(self.known.get(subset) for subset in subsets):
            unknown = [s for s in subsets if s not in self.known]
            answers = self.engine.each(self.reducer, self.candidates(unknown))
            # What makes no state was not asked, and does not fail.
            self.known |= dict.fromkeys(unknown[: max(answers, default=None)], False)
            for place, (state, failed) in answers.items():
                self.known[unknown[place]] = failed
                if failed:
                    self._note(unknown[place], state)
        return [self.known.get(subset) for subset in subsets]

    def candidates(self, subsets: Sequence[Subset]) -> list[tuple[str, Make[S]]]:
        """The subsets as what the engine asks about."""
        return [(f"{len(s)} of {self.count}", partial(self.make, s)) for s in subsets]

    def _note(self, failing: Subset, state: S) -> None:
        self.known[failing] = True
        if self.counts(failing):
            self.engine.accept(self.reducer, state)


def _smaller(change: Callable[[S], S | None], state: S) -> S | None:
    """The changed state, where it is smaller."""
    candidate = change(state)
    return candidate if candidate is not None and candidate.size < state.size else None


def combined(edits: Iterable[Edit[S] | NumberEdit[S]], state: S) -> S | None:
    """All edits on top of each other, those left out that do not fit or do not help; None where none does."""
    changed = None
    for edit in edits:
        changed = _smaller(edit.apply, changed or state) or changed
    return changed


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
    """Up to `count` numbers that divide the open interval evenly.

    >>> _spaced(0, 4, 1)
    [2]
    """
    numbers = [lower + (upper - lower) * part // (count + 1) for part in range(1, count + 1)]
    return sorted({number for number in numbers if lower < number < upper}) or [lower + 1]
