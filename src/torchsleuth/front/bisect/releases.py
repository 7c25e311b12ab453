"""In which releases of torch a script fails: rounds of k runs, each in the environment of one release.

A `Provider` has a Python for each release (`index` is the real one, tests make up a history); a `Runner` runs the
script once. What one release says is told at once (`on_tried`), so whoever stops the search loses only the runs under
way. Which releases come next and what the answers mean are pure functions over a list of names, at the end.

Their one idea: with k runs at a time, k evenly spaced releases cut the stretch in which the change must lie into k + 1
parts. A release that cannot be tested only falls out of the list; the search goes on in the longest part that has no
such release in it, because they come in clusters. Nothing here assumes that a failure comes only once.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from typing import Protocol

from torchsleuth.core.cases.releases import (
    NOT_BUILT,
    Bisection,
    Range,
    ReleaseChange,
    ReleaseFinding,
    TriedRelease,
)
from torchsleuth.core.criteria import Answer
from torchsleuth.front.bisect.environments import CannotBuild, Stopped
from torchsleuth.front.supervise.scripts import ScriptRun


@dataclass(frozen=True)
class Offer:
    """What a release costs: nothing where it is at hand; `exact` tells a size read from an estimate.

    `refused` says why it cannot be had at all, as far as that is known beforehand.
    """

    at_hand: bool
    bytes: int = 0
    exact: bool = True
    refused: str | None = None


class Provider(Protocol):
    """Anything that has releases to try."""

    @property
    def installed(self) -> str | None:
        """The release that is here already and costs nothing."""

    @property
    def build_seconds(self) -> float:
        """How long one environment takes, by those that were built here."""

    def versions(self, wanted: Range) -> Sequence[str]:
        """The releases of a range, oldest first."""

    def offer(self, version: str) -> Offer:
        """What this one would cost; downloads nothing."""

    def python_for(self, version: str, deadline: float) -> str:
        """The Python that has this release, built where need be; raises `CannotBuild`."""

    def stop(self) -> None:
        """Ends what is being built, soon; what is built stays."""


@dataclass(frozen=True)
class Plan:
    """What a search may download: at most `most` releases, `bytes` in all; `all_bytes` for every one of `count`.

    `disk` is what is kept of it, and `seconds` what building may take.
    """

    count: int
    most: int
    bytes: int
    all_bytes: int
    exact: bool
    disk: int = 0
    seconds: float = 0.0


def plan_of(versions: Sequence[str], provider: Provider, workers: int) -> Plan:
    """What trying these releases may cost, where one change is looked for and the largest ones are hit."""
    with ThreadPoolExecutor(8) as pool:  # each may ask a server for the size of one file
        offers = list(pool.map(provider.offer, versions))
    usable = [offer for offer in offers if offer.refused is None]
    costly = sorted((o.bytes for o in usable if not o.at_hand), reverse=True)
    # The installed release is tried beside both ends; where it lies between them it costs no download.
    most = min(len(costly), most_runs(len(usable), workers))
    exact = all(o.exact for o in usable if not o.at_hand)
    disk = sum(round(size * kept_per_byte(size)) for size in costly[:most])
    seconds = provider.build_seconds * math.ceil(most / workers)
    return Plan(len(costly), most, sum(costly[:most]), sum(costly), exact, disk, seconds)


def kept_per_byte(size: int) -> float:
    """Bytes on the disk for each one of a download: 2.14.1 with its CUDA packages is 2.7 GB and keeps 5.4, 2.13.0 for
    the CPU 0.19 and 0.70 (2026-11-19)."""
    return 2.0 if size > 1_000_000_000 else 3.7


class Runner(Protocol):
    """Runs the script in question."""

    def run(self, python: str, deadline: float) -> ScriptRun:
        """One answer of the script under that Python."""

    def end(self) -> None:
        """Ends the runs under way."""


@dataclass(frozen=True)
class RepeatedScript:
    """`once` runs a script or program in a fresh process, until `stopped`. It passes only where it passes `times`
    times."""

    once: Callable[[str, float], ScriptRun]
    stopped: threading.Event
    times: int = 1

    def run(self, python: str, deadline: float) -> ScriptRun:
        """The first answer that is not "passes", else the last."""
        started = time.monotonic()
        for _ in range(self.times):
            run = self.once(python, deadline)
            if run.answer is not Answer.PASSES:
                break
        return replace(run, seconds=time.monotonic() - started)

    def end(self) -> None:
        """Ends the runs under way."""
        self.stopped.set()


@dataclass
class Search:
    """A search under way: what it asks and whom it tells."""

    versions: Sequence[str]
    provider: Provider
    runner: Runner
    deadline: float
    workers: int = 2
    on_tried: Callable[[TriedRelease], None] = lambda _tried: None
    say: Callable[[str], None] = lambda _text: None
    tried: dict[str, TriedRelease] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)  # known beforehand not to be there

    @property
    def seen(self) -> dict[str, Answer]:
        return {version: tried.answer for version, tried in self.tried.items()}


def bisect_releases(search: Search) -> Bisection:
    """Tries releases until the answer is found or the time is over.

    `search.tried` may hold what an earlier, stopped search learned: that is not asked for again.
    """
    _refuse_beforehand(search)
    while batch := _next(search, search.workers):
        if time.monotonic() > search.deadline or not _round(search, batch):
            return so_far(search, "the time was over before the answer was found")
    return so_far(search, None)


def so_far(search: Search, error: str | None) -> Bisection:
    """What a search has learned, also where it was stopped: `so_far(search, "stopped by Ctrl-C")`."""
    tried = tuple(search.tried[v] for v in search.versions if v in search.tried)
    found = finding_of(search.versions, search.seen, _next(search, len(search.versions)))
    return Bisection(**vars(found), tried=tried, error=error)


def may_be_tried(search: Search) -> list[str]:
    """The releases that the search may still ask for, none where it knows the answer already."""
    left = _next(search, len(search.versions))
    ends_known = all(v in search.tried for v in (search.versions[0], search.versions[-1]))
    return left if ends_known or not left else [v for v in search.versions if v not in search.tried]


def tried_before(result: Bisection | None, of: str, versions: Sequence[str]) -> dict[str, TriedRelease]:
    """What an earlier search of the same learned about these releases; what was not built is worth another look."""
    known = () if result is None or result.of != of else result.tried
    return {t.version: t for t in known if t.version in versions and t.outcome != NOT_BUILT}


def _refuse_beforehand(search: Search) -> None:
    """Notes the releases that cannot be had, before anything is downloaded, so that no run is spent on them."""
    for version in search.versions:
        if version not in search.tried and (why := search.provider.offer(version).refused) is not None:
            search.refused.add(version)
            _note(search, TriedRelease(version, NOT_BUILT, 0.0, why))


def _round(search: Search, batch: Sequence[str]) -> bool:
    """Tries several releases at a time; False where the time was over before one of them was decided."""
    decided = True
    with ThreadPoolExecutor(len(batch)) as pool:
        futures: list[Future[TriedRelease | None]] = [pool.submit(_try, search, version) for version in batch]
        try:
            for future in as_completed(futures):
                tried = future.result()
                decided = decided and tried is not None
                if tried is not None:
                    _note(search, tried)
        except BaseException:  # Ctrl-C, a full disk: none of the others may go on for minutes unseen
            search.provider.stop()
            search.deadline = 0.0
            search.runner.end()
            raise
    return decided


def _try(search: Search, version: str) -> TriedRelease | None:
    started = time.monotonic()
    try:
        offer = search.provider.offer(version)
        if not offer.at_hand:
            search.say(
                f"torch {version}: building its environment, about {offer.bytes / 1e9:.1f} GB to download"
            )
        python = search.provider.python_for(version, search.deadline)
        search.say(f"torch {version}: running it")
        run = search.runner.run(python, search.deadline)
    except CannotBuild as why:
        return TriedRelease(version, NOT_BUILT, round(time.monotonic() - started, 2), str(why))
    except Stopped:
        return None
    # A run that the clock of the whole search ended looks like a hang, and is none.
    if time.monotonic() > search.deadline:
        return None
    return TriedRelease(version, run.answer.value, round(run.seconds, 2), run.summary)


def _note(search: Search, tried: TriedRelease) -> None:
    search.tried[tried.version] = tried
    search.on_tried(tried)


def _next(search: Search, at_most: int) -> list[str]:
    """What to try next of the releases that can be had: those are what a range is made of."""
    usable = [v for v in search.versions if v not in search.refused]
    return next_to_try(usable, search.seen, at_most, search.provider.installed) if usable else []


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
            other = [v for v in between if seen.get(v) is Answer.OTHER]
            what = [f"{', '.join(other)} failed differently"] if other else []
            rest = [v for v in between if v not in other]
            what += [f"{', '.join(rest)} could not be tested"] if rest else []
            notes.append(
                f"{' and '.join(what)}, so the change may have come with {'it' if not between[1:] else 'one of them'}"
            )
    return tuple(notes)


def _given_up(versions: Sequence[str], seen: Mapping[str, Answer], tested: Sequence[str]) -> tuple[str, ...]:
    low, high = versions.index(tested[0]), versions.index(tested[-1])
    untried = [v for v in (*versions[:low], *versions[high + 1 :]) if v not in seen]
    return (f"not tried, as their neighbours could not be tested: {', '.join(untried)}",) if untried else ()
