"""A workaround that was tried on the failing graph, as the search hands it to whoever runs the whole program with it.

The search needs torch and the runs of the program do not, so this is what goes between their processes, as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchsleuth.core.cases.model import Workaround
from torchsleuth.core.protocol.codec import from_json, plain
from torchsleuth.watched.overrides import Overrides, overrides_from_json


@dataclass(frozen=True)
class Attempt:
    """A workaround as the case keeps it, and how to run a whole program with it (None where that cannot be done)."""

    workaround: Workaround
    overrides: Overrides | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values; `attempt_from_json` reads them back."""
        overrides = None if self.overrides is None else self.overrides.to_json()
        return {"workaround": plain(self.workaround), "overrides": overrides}


def attempt_from_json(document: Mapping[str, Any]) -> Attempt:
    """The attempt of a document: `attempt_from_json(attempt.to_json()) == attempt`."""
    overrides = document["overrides"]
    return Attempt(
        from_json(Workaround, document["workaround"]),
        None if overrides is None else overrides_from_json(overrides),
    )
