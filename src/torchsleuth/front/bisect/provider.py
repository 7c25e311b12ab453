"""Where releases come from, as the search sees it: a list, what each would cost, and a Python that has it.

The search knows this interface alone, so it is tested with a made-up history; `index_provider` is the real one.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from torchsleuth.front.bisect.release_names import Range
from torchsleuth.front.bisect.schedule import most_runs


class CannotBuild(Exception):
    """There is no environment with this release; says why. The search goes on without it."""


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
    """What a search may download: at most `most` releases, `bytes` in all; `all_bytes` for every one of `count`."""

    count: int
    most: int
    bytes: int
    all_bytes: int
    exact: bool


def plan_of(versions: Sequence[str], provider: Provider, workers: int) -> Plan:
    """What trying these releases may cost, where one change is looked for and the largest ones are hit."""
    with ThreadPoolExecutor(8) as pool:  # each may ask a server for the size of one file
        offers = list(pool.map(provider.offer, versions))
    usable = [offer for offer in offers if offer.refused is None]
    costly = sorted((o.bytes for o in usable if not o.at_hand), reverse=True)
    # The installed release is tried beside both ends; where it lies between them it costs no download.
    most = min(len(costly), most_runs(len(usable), workers))
    exact = all(o.exact for o in usable if not o.at_hand)
    return Plan(len(costly), most, sum(costly[:most]), sum(costly), exact)
