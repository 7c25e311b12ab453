"""All that a verb prints goes through here: made safe for a terminal, and without secrets.

A case may come from a stranger, and a path, an error or the words of another process may carry what a case holds. So it
is not left to each verb to remember which of its strings do.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time

import click

from torchsleuth.core.cases.scrub import hidden, printable, without_secrets_in
from torchsleuth.core.protocol.steps import Asked, Says, SearchBegins, Seen, Smaller

# A script that is shown in full, a log.
MOST_SHOWN = 1 << 20
# Several threads may say something at a time, and a signal may arrive while one does.
_SAYING = threading.RLock()


def say(sentence: str, *, lines: bool = False) -> None:
    """A sentence on stderr, on one line unless `lines`: `say("stopped")`. Never raises: nobody may be there to read."""
    with _SAYING, contextlib.suppress(OSError, ValueError):
        click.echo(f"torchsleuth: {_safe(sentence, lines)}", err=True)


def show(line: str = "", *, lines: bool = False) -> None:
    """A line on stdout, for a person; several only where `lines` says so: `show("calls left: 1")`."""
    click.echo(_safe(line, lines))


def status(text: str) -> None:
    """The line on stderr that is written over and over in a terminal; an empty one ends it."""
    with contextlib.suppress(OSError, ValueError):
        click.echo(f"\r\x1b[2K{_safe(text)}" if text else "", err=True, nl=not text)


def print_json(document: object) -> None:
    """One JSON document on stdout; its strings are escaped, so that a terminal obeys none of them."""
    click.echo(json.dumps(without_secrets_in(document), indent=1))


def _safe(text: str, lines: bool = False) -> str:
    return hidden(printable(text, lines, MOST_SHOWN))


class LiveLine:
    """A line on stderr that is written over and over in a terminal; elsewhere, what is worth a line of its own."""

    def __init__(self) -> None:
        self.live = sys.stderr is not None and sys.stderr.isatty()
        self.shown = False

    def write(self, text: str) -> None:
        """Shows it in a terminal."""
        status(f"torchsleuth: {text}")
        self.shown = True

    def end(self) -> None:
        """What follows begins on a line of its own."""
        if self.shown:
            status("")
        self.shown = False

    def say(self, text: str) -> None:
        self.end()
        say(text)


# Without a terminal every line stays: one where the case is half as large as at the last one, or after this long.
SECONDS_BETWEEN_LINES = 20.0


class StatusLine(LiveLine):
    """One line that answers: is it moving, how small, how many trials, how fast, how long still, may I stop now."""

    def __init__(self, budget: float) -> None:
        super().__init__()
        self.started_at = self.last = time.monotonic()
        self.budget = budget
        self.first = self.calls = self.trials = 0
        self.unit = "calls"
        self.said_at, self.said_calls = self.started_at, 0

    def update(self, message: Seen) -> None:
        """What the search host tells: `line.update(Smaller("nodes", 3))`."""
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
            self.say(message.text)

    def _show(self, reducer: str, smaller: bool = False) -> None:
        now = time.monotonic()
        took = max(0.1, now - self.started_at)
        text = (
            f"{self.first} → {self.calls} {self.unit}, {self.trials} trials in {took:.0f} s "
            f"({self.trials / took:.1f}/s), smaller {now - self.last:.0f} s ago, now {reducer or 'starting'}, "
            f"at most {max(0.0, self.budget - took):.0f} s more; Ctrl-C keeps the best so far"
        )
        if self.live:
            self.write(text)
        elif smaller and (2 * self.calls <= self.said_calls or now - self.said_at >= SECONDS_BETWEEN_LINES):
            self.said_at, self.said_calls = now, self.calls
            say(text)
