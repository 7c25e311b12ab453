"""The smallest set of elements that still fails, found with few and small questions.

Blame first: a named element, then ever more around it, costs next to nothing when it is right and four
questions when it is wrong. Then whom a failure that names its results points at, one of each kind, halves,
counter-based delta debugging with a prior of two culprits among all elements (a constant prior removes nine elements
per question, whatever their number), and last each element by itself. Nothing here knows torch: elements are numbers
in dataflow order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

Subset = tuple[int, ...]
Item = TypeVar("Item")
# The place of the first subset that fails, in the order given, or None where none does. One that has an attribute
# `each`, a function, can also tell of several at once: True, False, or None for those that it did not come to.
Ask = Callable[[Sequence[Subset]], int | None]
Each = Callable[[Sequence[Subset]], Sequence[bool | None]]

# How many elements around a blamed one are tried.
NEAR = (2, 4, 8, 16, 32)
# Seeds beyond these are guesses that cost more than they save.
MOST_SEEDS = 8
MOST_NEAR_SEEDS = 2
# Enough for any number of workers; more would only be built in vain.
ASK_AT_ONCE = 8
# A cover that is larger than this share of the whole costs as much as the whole.
WORTHWHILE = 0.6
# Of so many elements each pair can still be tried.
MOST_PAIRED = 12
# CDD multiplies the probability that an element matters by this each round: 1 / (1 - 1/e).
GROWTH = 1 / (1 - math.exp(-1))


class NothingFails(Exception):
    """No part fails, and neither does the whole: there is nothing to look for."""


@dataclass(frozen=True)
class Elements:
    """`count` elements in dataflow order, which of them touch, and what is known about who is to blame.

    `kinds` are covers: ever larger sets that hold one of each kind of element, with ever more around it; `blamed` are
    those that the failure was seen at, all of them, where it is one of each kind in `seeds`.
    """

    count: int
    neighbours: Sequence[Sequence[int]] = ()
    seeds: Sequence[int] = ()
    kinds: Sequence[Subset] = ()
    singles: Subset = field(default=())
    # Of `seeds` only the first of a kind may be there; these are all.
    blamed: Subset = ()

    @property
    def covers(self) -> list[Subset]:
        """Those of `kinds` that are small enough to be worth a question of their own."""
        return [kinds for kinds in self.kinds if len(kinds) <= WORTHWHILE * self.count]


def smallest_failing(
    elements: Elements,
    ask: Ask,
    ask_apart: Ask | None = None,
    suspects: Callable[[], Sequence[int]] = tuple,
    ask_passing: Ask | None = None,
    point: Callable[[Sequence[Subset]], bool] | None = None,
    width: int = 1,
    coarse: bool = False,
) -> Subset:
    """A subset that fails and none of whose parts with one element less does; with `coarse` no such part is asked.

    `ask_apart` tries elements without their connections; `suspects` says whom the last failure points at;
    `ask_passing`, where given, answers with the first of disconnected subsets that passes, and `point` tries ever
    larger subsets such that suspects are known exactly, and says whether one failed; `width` is how many subsets are
    tried at the same time. The whole is only asked about where no small part fails, because it is the dearest
    question; `NothingFails` is raised where it does not fail either.

    >>> smallest_failing(Elements(100), lambda subsets: next((i for i, s in enumerate(subsets) if 7 in s), None))
    (7,)
    """
    whole = tuple(range(elements.count))
    if elements.count <= 1:
        return whole
    passed: list[Subset] = []
    ask = _Watched(ask, passed)
    smaller = elements.covers
    found = (
        _blamed(elements, ask)
        or _near_seeds(elements, ask)
        or pointed_at(elements, smaller or [whole], ask, point, suspects)
        or _alone(elements, ask, ask_apart, suspects, ask_passing, width)
        # One by one: each is dearer than the one before.
        or next((subset for subset in [*smaller, whole] if ask([subset]) is not None), None)
    )
    if found is None:
        raise NothingFails("the whole does not fail")
    found = counted(halved(found, ask), ask)
    if coarse:
        return found
    found = one_less(found, ask)
    if len(found) <= MOST_PAIRED and any(set(found) < set(subset) for subset in passed):
        found = two_less(found, ask)
    return found


def smallest(
    items: Sequence[Item], enough: Callable[[Sequence[Sequence[Item]]], Sequence[bool]]
) -> list[Item]:
    """The fewest of `items` that are enough by themselves; all of them must be. `enough` answers several sets at once.

    >>> smallest([1, 2, 3, 4], lambda sets: [3 in s for s in sets])
    [3]
    """

    def ask(subsets: Sequence[Subset]) -> int | None:
        # Halves side by side; what may be left out one by one, because each that goes makes the next question smaller.
        at_once = 2 if len(subsets) <= 3 else 1
        for place in range(0, len(subsets), at_once):
            asked = [[items[n] for n in subset] for subset in subsets[place : place + at_once]]
            answers = list(enough(asked))
            if True in answers:
                return place + answers.index(True)
        return None

    return [items[n] for n in one_less(halved(tuple(range(len(items))), ask), ask)]


@dataclass(frozen=True)
class _Watched:
    """The same questions, with the subsets that were seen to pass."""

    ask: Ask
    passed: list[Subset]

    def __call__(self, subsets: Sequence[Subset]) -> int | None:
        place = self.ask(subsets)
        self.passed.extend(subsets[:place])
        return place

    def each(self, subsets: Sequence[Subset]) -> Sequence[bool | None]:
        answers = each_of(self.ask)(subsets)
        self.passed.extend(subset for subset, failed in zip(subsets, answers) if failed is False)
        return answers


def each_of(ask: Ask) -> Each:
    """How to ask for all answers of one round; where only the first failure is known, what is after it is not."""
    each: Each | None = getattr(ask, "each", None)
    if each is not None:
        return each

    def by_place(subsets: Sequence[Subset]) -> list[bool | None]:
        place = ask(subsets)
        if place is None:
            return [False] * len(subsets)
        return [*[False] * place, True, *[None] * (len(subsets) - place - 1)]

    return by_place


def _first(subsets: Sequence[Subset], ask: Ask) -> Subset | None:
    """The first subset that fails."""
    place = ask(subsets) if subsets else None
    return None if place is None else subsets[place]


def _blamed(elements: Elements, ask: Ask) -> Subset | None:
    """The blamed: together first where they are many, as a kernel's nodes are; else one by one, and then together."""
    few = len(elements.blamed) <= MOST_SEEDS
    together = 1 < len(elements.blamed) <= WORTHWHILE * elements.count
    if together and not few and ask([elements.blamed]) is not None:
        return elements.blamed
    guesses: list[Subset] = [(seed,) for seed in list(elements.seeds)[:MOST_SEEDS]]
    return _first([*guesses, elements.blamed] if together and few else guesses, ask)


def _near_seeds(elements: Elements, ask: Ask) -> Subset | None:
    """What lies around those who are blamed, ever more of it."""
    for size in NEAR if elements.seeds else ():
        if size > elements.count // 2:
            break
        near = [around(elements.neighbours, seed, size) for seed in elements.seeds[:MOST_NEAR_SEEDS]]
        if (found := _first(list(dict.fromkeys(near)), ask)) is not None:
            return found
    return None


def _alone(
    elements: Elements,
    ask: Ask,
    ask_apart: Ask | None,
    suspects: Callable[[], Sequence[int]],
    ask_passing: Ask | None,
    width: int,
) -> Subset | None:
    """A single culprit, found by trying one element of each kind side by side.

    Where failing takes long, as a hang does, both halves are tried at once and `ask_passing` says which one passes.
    """
    tried = elements.seeds[:MOST_SEEDS]
    singles = tuple(e for e in elements.singles if e not in tried)
    if ask_apart is None or not singles:
        return None
    # In parts from the beginning: together they cost what the whole does, and the part that fails is known at once.
    candidates = _first(in_parts(singles, 2), ask_apart)
    if candidates is None:
        return None
    suspected = [(element,) for element in suspects() if element in candidates][:MOST_SEEDS]
    if (found := _first(suspected, ask)) is not None:
        return found
    while len(candidates) > 1:
        if ask_passing is not None:
            halves = in_parts(candidates, 2)
            candidates = halves[1 if ask_passing(halves) == 0 else 0]
            continue
        # One of the parts must fail where a single one is at fault, so the last need not be asked.
        *parts, last = in_parts(candidates, width + 1)
        candidates = _first(parts, ask_apart) or last
    return candidates if ask([candidates]) is not None else None


def in_parts(subset: Subset, count: int) -> list[Subset]:
    """The subset in up to `count` parts of nearly one size, in order.

    >>> in_parts((1, 2, 3, 4, 5), 2)
    [(1, 2), (3, 4, 5)]
    """
    cuts = [len(subset) * part // count for part in range(count + 1)]
    return [subset[begin:end] for begin, end in itertools.pairwise(cuts) if begin < end]


def pointed_at(
    elements: Elements,
    covers: Sequence[Subset],
    ask: Ask,
    point: Callable[[Sequence[Subset]], bool] | None,
    suspects: Callable[[], Sequence[int]],
) -> Subset | None:
    """A few elements that end in the first one which a failure points at: it is wrong by what it reads.

    >>> some = Elements(100, neighbours=[[]] * 100)
    >>> pointed_at(some, [tuple(range(100))], lambda subsets: 0, lambda covers: True, lambda: [9, 7])
    (7,)
    """
    if point is None or elements.count <= MOST_PAIRED or not point(covers):
        return None
    first = min(suspects(), default=None)
    if first is None:
        return None
    before = [[n for n in near if n < number] for number, near in enumerate(elements.neighbours)]
    return _first(list(dict.fromkeys(around(before, first, size) for size in (1, *NEAR))), ask)


def around(neighbours: Sequence[Sequence[int]], centre: int, size: int) -> Subset:
    """The `size` elements nearest to the centre.

    >>> around([[1], [0, 2], [1]], 0, 2)
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

    What is left where chunks would be single ones is for `one_less`.

    >>> counted(tuple(range(64)), lambda subsets: next((i for i, s in enumerate(subsets) if 7 in s), None))
    (6, 7)
    """
    if len(subset) <= 2:
        return subset
    probability = 2 / len(subset)
    while True:
        size = max(1, round(-1 / math.log(1 - min(probability, 0.999))))
        size = min(size, max(1, len(subset) // 2))
        if size == 1:
            return subset
        chunks = [subset[i : i + size] for i in range(0, len(subset), size)]
        subset = _without_any(subset, chunks, ask)
        probability = max(probability, 2 / len(subset)) * GROWTH


def _without_any(subset: Subset, chunks: Sequence[Subset], ask: Ask) -> Subset:
    """Removes every chunk that can go, asking for a few at a time.

    Chunks that can go each by itself, as seen in one round, are taken away together: most are independent.
    """
    each = each_of(ask)
    untried = list(chunks)
    while untried:
        batch = [chunk for chunk in untried[:ASK_AT_ONCE] if _less(subset, chunk)]
        if not batch:
            return subset
        answers = dict(zip(batch, each([_less(subset, chunk) for chunk in batch])))
        gone = [chunk for chunk in batch if answers[chunk]]
        untried = [chunk for chunk in untried if answers.get(chunk) is None]
        if len(gone) > 1 and (merged := _merged(subset, gone, untried, each)) is not None:
            subset, untried = merged
        elif gone:
            subset, untried = _less(subset, gone[0]), [*gone[1:], *untried]
    return subset


def _merged(
    subset: Subset, gone: Sequence[Subset], untried: list[Subset], each: Each
) -> tuple[Subset, list[Subset]] | None:
    """Without all that is `gone`, and without the next chunk too if that holds; with what is then untried."""
    rest = _less(subset, itertools.chain(*gone))
    if not rest:
        return None
    further = [chunk for chunk in untried[:1] if _less(rest, chunk)]
    answers = each([*(_less(rest, chunk) for chunk in further), rest])
    if further and answers[0]:
        return _less(rest, further[0]), untried[1:]
    if answers[-1]:
        return rest, untried[len(further) :] if answers[0] is False else untried
    return None


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
