"""The verdict on a compiled result, leaf by leaf, with the numbers that decided it.

The idea: five answers, not two. A person can check each from the numbers beside it: the distance from the
float64 truth in units of measured rounding noise (z), in ulps, as share of elements, and relative to eager.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from torchsleuth.torch_core.tensors import plain

DIVERGED = "DIVERGED"
WITHIN_NOISE = "WITHIN_NOISE"
LESS_PRECISE = "LESS_PRECISE"
EAGER_SUSPECT = "EAGER_SUSPECT"
INCONCLUSIVE = "INCONCLUSIVE"

SEVERITY = (WITHIN_NOISE, LESS_PRECISE, EAGER_SUSPECT, INCONCLUSIVE, DIVERGED)
"""From harmless to decisive: a verdict is the gravest of its leaves."""


@dataclass(frozen=True)
class LeafVerdict:
    """What was found about one leaf; numbers are `None` where they have no meaning for its type."""

    path: str
    kind: str
    sentence: str
    rule: str = ""
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    index: tuple[int, ...] | None = None
    compiled: float | None = None
    eager: float | None = None
    truth: float | None = None
    ulps: float | None = None
    z: float | None = None
    z_eager: float | None = None
    limit: float | None = None
    share: float | None = None
    rmse_ratio: float | None = None
    bias: float | None = None
    closer_than_eager: bool | None = None
    random: bool = False
    fallbacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """The answer for a whole graph, one sentence, and every leaf behind it."""

    kind: str
    sentence: str
    leaves: tuple[LeafVerdict, ...] = ()
    nondeterministic: bool = False
    fallbacks: dict[str, str] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    runs: int = 0
    seconds: float = 0.0
    calibrated: str | None = None

    @property
    def diverged(self) -> bool:
        """Whether the compiled result is wrong."""
        return self.kind == DIVERGED

    @property
    def worst(self) -> LeafVerdict | None:
        """The leaf that decided: the gravest, and among equals the one furthest from the truth."""
        return max(self.leaves, key=lambda leaf: (SEVERITY.index(leaf.kind), leaf.z or 0.0), default=None)

    def to_json(self) -> dict[str, Any]:
        """Plain values only: not-a-number and infinities become strings.

        Example: `json.dumps(judge(graph, inputs, compiled).to_json())`.
        """
        return plain(dataclasses.asdict(self))

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.sentence}"]
        told = (f"{leaf.path}: {leaf.sentence}" for leaf in self.leaves if leaf.kind != WITHIN_NOISE)
        lines += [f"  {leaf}" for leaf in told if leaf != self.sentence]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


def gravest(kinds: list[str]) -> str:
    """The kind that a whole verdict takes from its leaves; WITHIN_NOISE when there is none."""
    return max(kinds, key=SEVERITY.index, default=WITHIN_NOISE)


def inconclusive(why: str, **more: Any) -> Verdict:
    """A verdict that only says why there is none."""
    return Verdict(INCONCLUSIVE, why, **more)
