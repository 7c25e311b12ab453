"""The line on stderr that says how a search goes: is it moving, how small, how many trials, how long still."""

from __future__ import annotations

import sys
import time

from torchsleuth.core.protocol.host import Asked, Says, SearchBegins, Seen, Smaller
from torchsleuth.front.cli.output import say, status

# Without a terminal every line stays: one where the case is half as large as at the last one, or after this long.
SECONDS_BETWEEN_LINES = 20.0


class StatusLine:
    """One line that answers: is it moving, how small, how many trials, how fast, how long still, may I stop now."""

    def __init__(self, budget: float) -> None:
        self.started_at = self.last = time.monotonic()
        self.budget = budget
        self.first = self.calls = self.trials = 0
        self.unit = "calls"
        self.live = sys.stderr is not None and sys.stderr.isatty()
        self.shown = False
        self.said_at, self.said_calls = self.started_at, 0

    def hear(self, message: Seen) -> None:
        """What the search host tells: `line.hear(Smaller("nodes", 3))`."""
        if isinstance(message, SearchBegins):
            self.first = self.calls = self.said_calls = message.size
            self.unit = message.unit
            self._show("")
        elif isinstance(message, Asked):
            self.trials += message.trials
            self._show(message.reducer)
        elif isinstance(message, Smaller):
            self.last, self.calls = time.monotonic(), message.size
            self._show(message.reducer, smaller=True)
        elif isinstance(message, Says):
            self.end()
            say(message.text)

    def end(self) -> None:
        if self.shown and self.live:
            status("")
        self.shown = False

    def _show(self, reducer: str, smaller: bool = False) -> None:
        now = time.monotonic()
        took = max(0.1, now - self.started_at)
        text = (
            f"{self.first} → {self.calls} {self.unit}, {self.trials} trials in {took:.0f} s "
            f"({self.trials / took:.1f}/s), smaller {now - self.last:.0f} s ago, now {reducer or 'starting'}, "
            f"at most {max(0.0, self.budget - took):.0f} s more; Ctrl-C keeps the best so far"
        )
        if self.live:
            status(f"torchsleuth: {text}")
            self.shown = True
        elif smaller and (2 * self.calls <= self.said_calls or now - self.said_at >= SECONDS_BETWEEN_LINES):
            self.said_at, self.said_calls = now, self.calls
            say(text)
