"""Releases of torch: their names, order and ranges, and what `bisect` found of them, a section of case.json.

A name is `2.12.1` or `2.14.0.dev20261001`; what follows a `+` says how it was built, not what it is. An end of a range
takes in all that starts with it: `2.15` ends after the last 2.15.x. Dates mean nightlies; release candidates are
tried only where they are named one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date

from packaging.version import InvalidVersion, Version

from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.model import Case
from torchsleuth.core.criteria import Answer
from torchsleuth.core.protocol.codec import WrongShape, from_json, plain

_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
NIGHTLY = "nightly"


class BadRange(SleuthError):
    """What was given as a range or list of releases is none."""


@dataclass(frozen=True)
class Range:
    """Both ends of `A..B`, each a prefix of a release, a date, or `nightly` for the newest of all."""

    text: str
    first: tuple[int, ...] | date
    last: tuple[int, ...] | date | str

    @property
    def has_releases(self) -> bool:
        return isinstance(self.first, tuple)

    @property
    def has_nightlies(self) -> bool:
        return not isinstance(self.last, tuple)

    def chosen_of(self, names: Iterable[str]) -> list[str]:
        """The names inside, oldest first; of a range that only ends at a nightly, that one nightly.

        >>> range_of("2.11..2.12").chosen_of(["2.12.1", "2.10.0", "2.11.0", "2.13.0", "2.12.0rc1"])
        ['2.11.0', '2.12.1']
        """
        found = sorted({(release_named(name), public(name)) for name in names if is_name(name)})
        releases = [name for release, name in found if self._holds_release(release)]
        nights = [name for release, name in found if self._holds_night(release)]
        return releases + (nights[-1:] if self.has_releases else nights)

    def _holds_release(self, name: Version) -> bool:
        if not isinstance(self.first, tuple) or name.is_prerelease:
            return False
        started = name.release >= self.first
        return started and (not isinstance(self.last, tuple) or name.release[: len(self.last)] <= self.last)

    def _holds_night(self, name: Version) -> bool:
        night = night_of(name)
        if night is None or isinstance(self.last, tuple):
            return False
        begun = night >= self.first if isinstance(self.first, date) else name.release >= self.first
        return begun and (not isinstance(self.last, date) or night <= self.last)


def public(name: str) -> str:
    """The name without how it was built: `public("2.13.0+cpu") == "2.13.0"`."""
    return name.partition("+")[0]


def is_name(text: str) -> bool:
    """Whether this names a release, a candidate or a nightly: `is_name("2.14.0.dev20261001+cpu")`."""
    try:
        release_named(text)
    except BadRange:
        return False
    return True


def release_named(name: str) -> Version:
    """The release of a name: `release_named("2.13.0+cpu") == release_named("2.13.0")`."""
    try:
        found = Version(public(name))
    except InvalidVersion:
        found = None
    if found is None or (found.is_devrelease and night_of(found) is None):
        raise BadRange(f"{name!r} is not a release of torch; write it like 2.13.0 or 2.14.0.dev20261001.")
    return found


def night_of(name: Version) -> date | None:
    """The date of a nightly, None of a release: `night_of(release_named("2.13.0")) is None`."""
    return _day(str(name.dev)) if name.is_devrelease else None


def range_of(text: str) -> Range:
    """The range that a person wrote: `range_of("2.11..2.15")`, `range_of("2026-10-01..2026-11-01")`."""
    first, dots, last = (part.strip() for part in text.partition(".."))
    low, high = _end(first), _end(last)
    if not dots or low is None or high is None or isinstance(low, str):
        raise BadRange(
            f"{text!r} is not a range of releases; write it like 2.11..2.15, 2.13.0..nightly "
            "or 2026-10-01..2026-11-01, or name them with --releases 2.11.0,2.12.1."
        )
    if isinstance(low, date) and isinstance(high, tuple):
        raise BadRange(
            f"{text!r} starts with a date and ends with a release; start with a release, or end with a date."
        )
    turned = isinstance(low, date) and isinstance(high, date) and low > high
    if isinstance(low, tuple) and isinstance(high, tuple):
        turned = low > high and low[: len(high)] != high
    if turned:
        raise BadRange(f"{text!r} ends before it starts; write the older one first: {last}..{first}.")
    return Range(text, low, high)


def names_listed(text: str) -> list[str]:
    """The releases of a list, oldest first: `names_listed("2.12.1,2.11.0") == ["2.11.0", "2.12.1"]`."""
    names = {public(part.strip()) for part in text.split(",") if part.strip()}
    if not names:
        raise BadRange("--releases names no release; write them like --releases 2.11.0,2.12.1.")
    return sorted(names, key=release_named)


def _end(text: str) -> tuple[int, ...] | date | str | None:
    if text == NIGHTLY:
        return NIGHTLY
    if match := _DATE.fullmatch(text):
        return _day("".join(match.groups()))
    return (
        tuple(int(n) for n in text.split(".")) if re.fullmatch(r"\d+(\.\d+){0,2}", text, re.ASCII) else None
    )


def _day(digits: str) -> date | None:
    try:
        return date(int(digits[:4]), int(digits[4:6]), int(digits[6:]))
    except ValueError:
        return None


# -- what was found

NOT_BUILT = "not built"


@dataclass(frozen=True)
class ReleaseChange:
    """`what` is "broken since" or "fixed in"; `before` is the last release tested before `version`.

    `untested` lie between the two: the change may have come with one of them.
    """

    what: str
    version: str
    before: str
    untested: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReleaseFinding:
    """What the answers say: "broken since", "fixed in", "always", "never" or "unclear", and why."""

    answer: str
    version: str | None
    changes: tuple[ReleaseChange, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TriedRelease:
    """One release and what came of it, as case.json has it: the text of an `Answer`, or "not built"."""

    version: str
    outcome: str
    seconds: float
    why: str

    @property
    def answer(self) -> Answer:
        """What the search goes by; a release that was not built cannot tell."""
        return next((answer for answer in Answer if answer.value == self.outcome), Answer.CANNOT_TELL)


@dataclass(frozen=True)
class Bisection(ReleaseFinding):
    """The section `bisect` of case.json: what was found, and all that was tried for it."""

    tried: tuple[TriedRelease, ...] = ()
    error: str | None = None
    of: str | None = None  # names script, index and Python: answers count again only for the same

    def to_json(self) -> dict[str, object]:
        """Plain values; `bisection_of` reads them back."""
        document: dict[str, object] = plain(self)
        return document


def newest_working(result: Bisection) -> str | None:
    """The newest release in which the script passed, None where there was none: `newest_working(result)`."""
    passed = [t.version for t in result.tried if t.answer is Answer.PASSES and is_name(t.version)]
    return max(passed, key=release_named, default=None)


def bisection_of(case: Case) -> Bisection | None:
    """The result that a case holds, None where `bisect` was not run or its section cannot be read."""
    section = case.extra.get("bisect")
    try:
        return from_json(Bisection, section) if isinstance(section, Mapping) else None
    except WrongShape:
        return None
