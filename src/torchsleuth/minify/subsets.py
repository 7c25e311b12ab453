"""The smallest set of elements that still fails, found with few and small questions.

Blame first: a named element, then a growing ball around it, costs next to nothing when it is right and four
questions when it is wrong. Then one of each kind, then halves, then counter-based delta debugging with a prior of
two culprits among all elements (a constant prior removes nine elements per question, whatever their number), and
last each element by itself. Nothing here knows torch: elements are numbers in dataflow order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

Subset = tuple[int, ...]
# The place of the first subset that fails, in the order given, or None where none does.
Ask = Callable[[Sequence[Subset]], int | None]

BALLS = (2, 4, 8, 16, 32)
# Seeds beyond these are guesses that cost more than they save.
MOST_SEEDS = 8
MOST_BALL_SEEDS = 2
# Enough for any number of workers; more would only be built in vain.
ASK_AT_ONCE = 8
# Of so many elements each pair can still be tried.
MOST_PAIRED = 12
# CDD multiplies the probability that an element matters by this each round: 1 / (1 - 1/e).
GROWTH = 1 / (1 - math.exp(-1))


class NothingFails(Exception):
    """No part fails, and neither does the whole: there is nothing to look for."""


@dataclass(frozen=True)
class Elements:
    """`count` elements in dataflow order, which of them touch, and what is known about who is to blame.

    `kinds` are covers: ever larger sets that hold one of each kind of element, with ever more around it.
    """

    count: int
    neighbours: Sequence[Sequence[int]] = ()
    seeds: Sequence[int] = ()
    kinds: Sequence[Subset] = ()
    singles: Subset = field(default=())


def smallest_failing(
    elements: Elements,
    ask: Ask,
    ask_apart: Ask | None = None,
    suspects: Callable[[], Sequence[int]] = tuple,
    ask_passing: Ask | None = None,
) -> Subset:
    """A subset that fails and none of whose parts with one element less does.

    `ask_apart` tries elements without their connections; `suspects` says whom the last failure points at;
    `ask_passing`, where given, answers with the first of disconnected subsets that passes. The whole
    is only asked about where no small part fails, because it is the dearest question; `NothingFails` is raised
    where it does not fail either.

    >>> smallest_failing(Elements(100), lambda subsets: next((i for i, s in enumerate(subsets) if 7 in s), None))
    (7,)
    """
    whole = tuple(range(elements.count))
    if elements.count <= 1:
        return whole
    ask, passed = _watched(ask)
    found = (
        _blamed(elements, ask)
        or _ball(elements, ask)
        or _alone(elements, ask, ask_apart, suspects, ask_passing)
    )
    if found is None:
        smaller = [kinds for kinds in elements.kinds if len(kinds) <= 0.6 * elements.count]
        place = first_of(smaller, ask, one_by_one=True)
        if place is None and ask([whole]) is None:
            raise NothingFails("the whole does not fail")
        found = whole if place is None else smaller[place]
    found = one_less(counted(halved(found, ask), ask), ask)
    if len(found) <= MOST_PAIRED and any(set(found) < set(subset) for subset in passed):
        found = two_less(found, ask)
    return found


def _watched(ask: Ask) -> tuple[Ask, list[Subset]]:
    """The same question, and the subsets that were seen to pass."""
    passed: list[Subset] = []

    def watching(subsets: Sequence[Subset]) -> int | None:
        place = ask(subsets)
        passed.extend(subsets[:place])
        return place

    return watching, passed


def first_of(subsets: Sequence[Subset], ask: Ask, *, one_by_one: bool = False) -> int | None:
    """The first failing subset; one by one where each is dearer than the one before."""
    if not one_by_one:
        return ask(subsets) if subsets else None
    for place, subset in enumerate(subsets):
        if ask([subset]) is not None:
            return place
    return None


def _blamed(elements: Elements, ask: Ask) -> Subset | None:
    singles = [(seed,) for seed in list(elements.seeds)[:MOST_SEEDS]]
    place = first_of(singles, ask)
    return None if place is None else singles[place]


def _alone(
    elements: Elements,
    ask: Ask,
    ask_apart: Ask | None,
    suspects: Callable[[], Sequence[int]],
    ask_passing: Ask | None,
) -> Subset | None:
    """A single culprit, found by trying one element of each kind side by side.

    Where failing takes long, as a hang does, both halves are tried at once and `ask_passing` says which one passes.
    """
    candidates = tuple(e for e in elements.singles if (e,) not in [(s,) for s in elements.seeds[:MOST_SEEDS]])
    if ask_apart is None or not candidates or ask_apart([candidates]) is None:
        return None
    pointed_at = [(element,) for element in suspects() if element in candidates][:MOST_SEEDS]
    place = first_of(pointed_at, ask)
    if place is not None:
        return pointed_at[place]
    while len(candidates) > 1:
        middle = len(candidates) // 2
        halves = [candidates[:middle], candidates[middle:]]
        # One of two halves must fail where a single one is at fault, so the second need not be asked.
        if ask_passing is not None:
            candidates = halves[1 if ask_passing(halves) == 0 else 0]
        else:
            candidates = halves[0] if ask_apart([halves[0]]) is not None else halves[1]
    return candidates if ask([candidates]) is not None else None


def _ball(elements: Elements, ask: Ask) -> Subset | None:
    for size in BALLS if elements.seeds else ():
        if size > elements.count // 2:
            break
        balls = [ball(elements.neighbours, seed, size) for seed in elements.seeds[:MOST_BALL_SEEDS]]
        place = first_of(list(dict.fromkeys(balls)), ask)
        if place is not None:
            return list(dict.fromkeys(balls))[place]
    return None


def ball(neighbours: Sequence[Sequence[int]], centre: int, size: int) -> Subset:
    """The `size` elements nearest to the centre.

    >>> ball([[1], [0, 2], [1]], 0, 2)
    (0, 1)
    """
    found = {centre: None}
    queue = [centre]
    while queue and len(found) < size:
        near = queue.pop(0)
        for element in neighbours[near]:
            if element not in found and len(found) < size:
                found[element] = None
                queue.append(element)
    return tuple(sorted(found))


def halved(subset: Subset, ask: Ask) -> Subset:
    """Halves as long as one half still fails: left, right, or the middle one.

    >>> halved((1, 2, 3, 4), lambda subsets: next((i for i, s in enumerate(subsets) if 3 in s), None))
    (3,)
    """
    while len(subset) > 1:
        middle, quarter = len(subset) // 2, len(subset) // 4
        halves = [subset[:middle], subset[middle:]]
        if len(subset) >= 8:
            halves.append(subset[quarter : quarter + middle])
        place = ask(halves)
        if place is None:
            return subset
        subset = halves[place]
    return subset


def counted(subset: Subset, ask: Ask) -> Subset:
    """Delta debugging by counters: chunks shrink round by round, what succeeded is gone, nothing is retried.

    >>> counted((1, 2, 3, 4), lambda subsets: next((i for i, s in enumerate(subsets) if {2, 4} <= set(s)), None))
    (2, 4)
    """
    if len(subset) <= 2:
        return subset
    probability = 2 / len(subset)
    while True:
        size = max(1, round(-1 / math.log(1 - min(probability, 0.999))))
        size = min(size, max(1, len(subset) // 2))
        if size == 1:
            return subset
        subset = _without_chunks(subset, size, ask)
        probability = max(probability, 2 / len(subset)) * GROWTH


def _without_chunks(subset: Subset, size: int, ask: Ask) -> Subset:
    chunks = [subset[i : i + size] for i in range(0, len(subset), size)]
    return _without_any(subset, chunks, ask)


def _without_any(subset: Subset, chunks: Sequence[Subset], ask: Ask) -> Subset:
    """Removes every chunk that can go, asking for a few at a time."""
    untried = list(chunks)
    while untried:
        rests = [rest for chunk in untried[:ASK_AT_ONCE] if (rest := _less(subset, chunk))]
        place = ask(rests) if rests else None
        if place is not None:
            subset = rests[place]
        untried = untried[len(rests) or ASK_AT_ONCE :] if place is None else untried[place + 1 :]
    return subset


def one_less(subset: Subset, ask: Ask) -> Subset:
    """Takes elements away one by one until none can go any more.

    >>> one_less((1, 2, 3), lambda subsets: next((i for i, s in enumerate(subsets) if 3 in s), None))
    (3,)
    """
    while len(subset) > 1:
        # From the end: a reader is taken away more often with success than what it reads.
        smaller = _without_any(subset, [(element,) for element in reversed(subset)], ask)
        if smaller == subset:
            return subset
        subset = smaller
    return subset


def two_less(subset: Subset, ask: Ask) -> Subset:
    """Takes two elements away at once, for failures that some larger sets hide: there one alone may not do.

    >>> two_less((1, 2, 3), lambda subsets: next((i for i, s in enumerate(subsets) if s == (3,)), None))
    (3,)
    """
    while len(subset) > 2:
        pairs = list(itertools.combinations(reversed(subset), 2))
        for pair in pairs:
            if ask([_less(subset, pair)]) is not None:
                subset = one_less(_less(subset, pair), ask)
                break
        else:
            return subset
    return subset


def _less(subset: Subset, chunk: Iterable[int]) -> Subset:
    gone = set(chunk)
    return tuple(e for e in subset if e not in gone)
