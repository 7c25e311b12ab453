"""Settings of torch that switch something off: as data for a run, and as the line that a person pastes.

A value is Python text, because that is what a case keeps (`triage.flags`) and what a person reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

INDUCTOR = "torch._inductor.config"


@dataclass(frozen=True)
class Flag:
    """A setting of torch and the cautious value of it, as Python text; `means` is what that value switches off."""

    key: str
    value: str
    means: str
    module: str = INDUCTOR

    @property
    def line(self) -> str:
        """The line a person pastes.

        >>> Flag("fallback_random", "True", "own random numbers").line
        'torch._inductor.config.fallback_random = True'
        """
        return f"{self.module}.{self.key} = {self.value}"


RANDOM = Flag("fallback_random", "True", "Inductor's own random numbers")
PRECISION_CASTS = Flag(
    "emulate_precision_casts", "True", "keeping intermediate results in a higher precision than eager does"
)


def config_of(flags: Sequence[Flag]) -> dict[str, dict[str, str]]:
    """The flags as settings by module: `config_of([RANDOM])["torch._inductor.config"]["fallback_random"]`."""
    config: dict[str, dict[str, str]] = {}
    for flag in flags:
        config.setdefault(flag.module, {})[flag.key] = flag.value
    return config
