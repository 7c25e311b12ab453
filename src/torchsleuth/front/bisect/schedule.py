"""Which releases to try next, and what the ones tried so far say: pure functions over a list of names.

The one idea: with k runs at a time, k evenly spaced releases cut the stretch in which the change must lie into k + 1
parts. A release that cannot be tested only falls out of the list; the search goes on in the longest part that has no
such release in it, because they come in clusters. Nothing here assumes that a failure comes only once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from torchsleuth.core.cases.releases import ReleaseChange, ReleaseFinding
from torchsleuth.core.criteria import Answer

# Beyond the outermost release that could be tested, this many refusals are taken for the rest of that side: they come
# from an interface or a Python that all older (or newer) releases lack, and each costs a download.
PATIENCE = 4


def next_to_try(
    versions: Sequence[str], seen: Mapping[str, Answer], at_most: int, free: str | None
) -> list[str]:
    """The releases to try now, none where the answer is found; `free` costs nothing and goes first.

    >>> next_to_try(["1", "2", "3", "4", "5"], {"1": Answer.PASSES, "5": Answer.FAILS}, 1, None)
    ['3']
    """
    ends = (free, versions[0], versions[-1])
    anchors = [v for v in ends if v is not None and v in versions and v not in seen]
    if anchors:
        return list(dict.fromkeys(anchors))[:at_most]
    chosen: list[str] = []
    for run in _runs_that_matter(versions, seen):
        chosen += _evenly(run, at_most - len(chosen))
    return chosen


def finding_of(
    versions: Sequence[str], seen: Mapping[str, Answer], left: Sequence[str] = ()
) -> ReleaseFinding:
    """What the answers seen so far say; `left` is what a search that was stopped would have tried next.

    >>> finding_of(["1", "2", "3"], {"1": Answer.PASSES, "2": Answer.FAILS, "3": Answer.FAILS}).version
    '2'
    """
    tested = _tested(versions, seen)
    waiting = (f"not tried yet: {', '.join(left)}",) if left else ()
    if not tested:
        return ReleaseFinding("unclear", None, notes=waiting or ("none of the releases could be tested",))
    turns = _turns(tested, seen)
    notes = _notes(versions, seen, turns) + (() if turns or left else _given_up(versions, seen, tested))
    changes = tuple(_change(versions, seen, a, b) for a, b in turns if not _unseen(versions, seen, a, b))
    if turns:
        if not changes or changes[-1].version != turns[-1][1]:
            return ReleaseFinding("unclear", None, changes, notes)
        return ReleaseFinding(changes[-1].what, changes[-1].version, changes, (*notes, *waiting))
    if left:
        return ReleaseFinding("unclear", None, notes=(*notes, *waiting))
    if len(tested) == 1 and len(versions) > 1:
        return ReleaseFinding(
            "unclear", None, notes=(f"{tested[0]} alone could be tested; it {seen[tested[0]].value}", *notes)
        )
    return ReleaseFinding("always" if seen[tested[0]] is Answer.FAILS else "never", None, notes=notes)


def most_runs(count: int, at_most: int) -> int:
    """How many releases of `count` one change takes at worst where all can be tested: `most_runs(9, 1) == 5`."""
    left, runs = max(0, count - 2), min(count, 2)
    while left > 0:
        tried = min(at_most, left)
        runs += tried
        left = math.ceil((left - tried) / (tried + 1))
    return runs


def _tested(versions: Sequence[str], seen: Mapping[str, Answer]) -> list[str]:
    return [v for v in versions if v in seen and seen[v].is_evidence]


def _turns(tested: Sequence[str], seen: Mapping[str, Answer]) -> list[tuple[str, str]]:
    return [(a, b) for a, b in itertools.pairwise(tested) if seen[a] != seen[b]]


def _runs_that_matter(versions: Sequence[str], seen: Mapping[str, Answer]) -> list[list[str]]:
    """Untried releases in a row: between two that differ, the newest first; else beyond the outermost tested."""
    tested = _tested(versions, seen)
    if not tested:
        return _runs(versions, seen)
    turns = _turns(tested, seen)
    if turns:
        return [run for a, b in reversed(turns) for run in _runs(_between(versions, a, b), seen)]
    low, high = versions.index(tested[0]), versions.index(tested[-1])
    return _beyond(versions[high + 1 :], seen) + _beyond(versions[:low][::-1], seen)


def _beyond(side: Sequence[str], seen: Mapping[str, Answer]) -> list[list[str]]:
    """What to try on one side of all that could be tested, given from there outwards.

    Next to a release that could be tested others can be, so the limit is looked for there first.
    """
    near = list(itertools.takewhile(lambda version: version not in seen, side))
    refusals = sum(version in seen for version in side)
    far = _runs(side[len(near) :], seen) if refusals < PATIENCE else []
    return ([near] if near else []) + far


def _between(versions: Sequence[str], after: str, before: str) -> Sequence[str]:
    return versions[versions.index(after) + 1 : versions.index(before)]


def _unseen(versions: Sequence[str], seen: Mapping[str, Answer], after: str, before: str) -> list[str]:
    return [v for v in _between(versions, after, before) if v not in seen]


def _runs(stretch: Sequence[str], seen: Mapping[str, Answer]) -> list[list[str]]:
    """The untried releases of a stretch, cut where tried ones lie between them, the longest part first."""
    groups = itertools.groupby(stretch, key=lambda version: version in seen)
    return sorted((list(group) for tried, group in groups if not tried), key=len, reverse=True)


def _evenly(run: Sequence[str], wanted: int) -> list[str]:
    """`wanted` of the run that cut it into parts of the same length, give or take one."""
    wanted = min(wanted, len(run))
    return [run[(i + 1) * (len(run) + 1) // (wanted + 1) - 1] for i in range(wanted)]


def _change(versions: Sequence[str], seen: Mapping[str, Answer], before: str, version: str) -> ReleaseChange:
    what = "broken since" if seen[version] is Answer.FAILS else "fixed in"
    return ReleaseChange(what, version, before, tuple(_between(versions, before, version)))


def _notes(
    versions: Sequence[str], seen: Mapping[str, Answer], turns: Sequence[tuple[str, str]]
) -> tuple[str, ...]:
    notes = []
    if len(turns) > 1:
        notes.append(f"it changed {len(turns)} times in this range; the last change is told")
    for a, b in turns:
        between = _between(versions, a, b)
        untried = _unseen(versions, seen, a, b)
        if untried:
            notes.append(
                f"it {seen[a].value} in {a} and {seen[b].value} in {b}; not tried between: {', '.join(untried)}"
            )
        elif between:
            notes.append(f"{', '.join(between)} could not be tested, so the change may have come with it")
    return tuple(notes)


def _given_up(versions: Sequence[str], seen: Mapping[str, Answer], tested: Sequence[str]) -> tuple[str, ...]:
    low, high = versions.index(tested[0]), versions.index(tested[-1])
    untried = [v for v in (*versions[:low], *versions[high + 1 :]) if v not in seen]
    return (f"not tried, as their neighbours could not be tested: {', '.join(untried)}",) if untried else ()
