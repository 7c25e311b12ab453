"""What the watched process was asked to do: one frozen value, handed over in one environment variable."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

WATCH_VARIABLE = "TORCHSLEUTH_WATCH"


@dataclass(frozen=True)
class Settings:
    """How to watch. `spool` is the folder of this run, where each process keeps its own records.

    >>> Settings(spool="/tmp/spool", level=4).checks_accuracy
    True
    """

    spool: str
    level: int = 2
    after: str = "auto"
    only: str | None = None
    keep_going: bool = False
    check_every: int = 0

    @property
    def checks_accuracy(self) -> bool:
        return self.level >= 4

    def to_environment(self) -> dict[str, str]:
        return {WATCH_VARIABLE: json.dumps(asdict(self))}


def settings_from_environment() -> Settings | None:
    """The settings this process was started with, or None where it is not watched."""
    text = os.environ.get(WATCH_VARIABLE)
    return Settings(**json.loads(text)) if text else None
