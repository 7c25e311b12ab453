"""Who is at fault, as far as it is known: what every step of triage returns, and the next one completes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A component, the part of it, how that is known, and the operators and nodes it was at.

    `pinned` says that a run without the part showed it; `subsystem` and `application` are the switch and the number of
    its use that made the difference; `flags` are settings that matter; `only_dynamic`, that it needs symbolic sizes.
    `unclear` says why the nodes are not those at fault but all that are left; `left` are those, at fault or not.
    """

    component: str
    part: str | None = None
    detail: str | None = None
    pinned: bool = False
    ops: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    subsystem: str | None = None
    application: int | None = None
    flags: tuple[str, ...] = ()
    only_dynamic: bool = False
    unclear: str | None = None
    left: tuple[str, ...] = ()
