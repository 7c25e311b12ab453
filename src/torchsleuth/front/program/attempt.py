"""A workaround that was tried on the failing graph, as the search hands it to whoever runs the whole program with it.

The search needs torch and the runs of the program do not, so this is what goes between their processes, as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchsleuth.core.cases.model import Workaround
from torchsleuth.core.changes import Change
from torchsleuth.core.protocol.codec import from_json, plain


@dataclass(frozen=True)
class Attempt:
    """A workaround as the case keeps it, and how to run a whole program with it (None where that cannot be done)."""

    workaround: Workaround
    change: Change | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values; `attempt_from_json` reads them back."""
        change = None if self.change is None else self.change.to_json()
        return {"workaround": plain(self.workaround), "change": change}


def attempt_from_json(document: Mapping[str, Any]) -> Attempt:
    """The attempt of a document: `attempt_from_json(attempt.to_json()) == attempt`."""
    change = document["change"]
    return Attempt(
        from_json(Workaround, document["workaround"]),
        None if change is None else Change.from_json(change),
    )
