"""All that a verb prints goes through here: made safe for a terminal, and without secrets. And how the front ends.

A case may come from a stranger, and a path, an error or the words of another process may carry what a case holds. So it
is not left to each verb to remember which of its strings do.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

import click
from rich.cells import cell_len, set_cell_size

from torchsleuth.core.cases.scrub import hidden, printable, without_secrets_in
from torchsleuth.core.protocol.files import DISK_ERRORS
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


def print_json(document: object) -> None:
    """One JSON document on stdout; its strings are escaped, so that a terminal obeys none of them."""
    click.echo(json.dumps(without_secrets_in(document), indent=1))


def _safe(text: str, lines: bool = False) -> str:
    return hidden(printable(text, lines, MOST_SHOWN))


class LiveLine:
    """The last rows of a terminal, written over in place: a block that stays, and a line below it that moves.

    No row is longer than the terminal is wide: of one that wraps, only the last part would be written over. Elsewhere
    than in a terminal, there is what is worth a line of its own, once.
    """

    def __init__(self) -> None:
        self.live = sys.stderr is not None and sys.stderr.isatty()
        self.block: tuple[str, ...] = ()
        self.line = ""
        self._rows = 0

    def write(self, text: str) -> None:
        """The line as it is now, in a terminal."""
        self.line = f"torchsleuth: {text}"
        self._draw()

    def hold(self, lines: Sequence[str]) -> None:
        """The block as it is now: in place of the one before in a terminal, where it is the first elsewhere."""
        first, self.block = not self.block, tuple(lines)
        if self.live:
            self._draw()
        elif first:
            for line in self.block:
                say(line.removeprefix("torchsleuth: "))

    def say(self, text: str) -> None:
        """A sentence, which stays, above the rows."""
        with _SAYING:
            self._erase()
            say(text)
            self._draw()

    def end(self, *, leave: bool = True) -> None:
        """What follows begins on a row of its own: below the last rows, or in their place, where they are not left."""
        with _SAYING:
            if not leave:
                self._erase()
            elif self._rows:
                _put("\n")
            self.block, self.line, self._rows = (), "", 0

    def _draw(self) -> None:
        if not self.live:
            return
        size = shutil.get_terminal_size()
        rows = [*self.block[: max(0, size.lines - 3)], *([self.line] if self.line else [])]
        shown = [shorter_than(size.columns, _safe(row)) for row in rows]
        with _SAYING:
            self._erase()
            _put("\n".join(shown))
            self._rows = len(shown)

    def _erase(self) -> None:
        if self._rows:
            _put("\r" + (f"\x1b[{self._rows - 1}A" if self._rows > 1 else "") + "\x1b[J")
        self._rows = 0


def shorter_than(columns: int, text: str) -> str:
    """As much of a row as there is room for; what is cut is only what nobody has to read.

    >>> shorter_than(8, "12 calls left")
    '12 cal…'
    """
    if cell_len(text) < columns:
        return text
    return set_cell_size(text, max(1, columns - 2)).rstrip() + "…"


def _put(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        click.echo(text, err=True, nl=False)


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
            f"{self.first} → {self.calls} {self.unit}, {self.trials} trials, {max(0.0, self.budget - took):.0f} s left;"
            f" Ctrl-C keeps the best; smaller {now - self.last:.0f} s ago, now {reducer or 'starting'}"
        )
        if self.live:
            self.write(text)
        elif smaller and (2 * self.calls <= self.said_calls or now - self.said_at >= SECONDS_BETWEEN_LINES):
            self.said_at, self.said_calls = now, self.calls
            say(text)


# -- the end: asked by a signal, with nobody left to read, or by a mistake of our own


class AskedToEnd(BaseException):
    """SIGTERM or SIGHUP: raised where we are, so that programs end and folders go on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def end_when_asked() -> None:
    """Has SIGTERM and SIGHUP raise `AskedToEnd`, once; one that is ignored (nohup) stays ignored."""
    asking = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL]

    def asked(number: int, _frame: FrameType | None) -> NoReturn:
        for each in asking:  # what cleans up is not interrupted
            signal.signal(each, lambda *_: None)
        raise AskedToEnd(number)

    for number in asking:
        signal.signal(number, asked)


def fill_standard_streams() -> None:
    """Puts /dev/null where a standard stream was closed (`2>&-`): else the next file that is opened takes its place.

    Not for the program that we run: it finds them closed, as it does without us.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, and is not inherited


def flush_or_forget() -> None:
    """Writes out what was printed; what nobody takes is dropped, as Python would end with status 120 for it."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)


def our_fault(error: Exception) -> int:
    """Says what went wrong in torchsleuth's own work, and returns the status for it."""
    import traceback

    if isinstance(error, OSError) and error.errno in DISK_ERRORS:
        say(f"stopped: {error}")
        return 2
    last = traceback.extract_tb(error.__traceback__)[-1]
    say(
        f"internal error, this is a bug in torchsleuth: {type(error).__name__}: {error} "
        f"({last.filename.rpartition('/')[2]}:{last.lineno}); set TORCHSLEUTH_TRACEBACK=1 to see the traceback"
    )
    if os.environ.get("TORCHSLEUTH_TRACEBACK"):
        say(traceback.format_exc(), lines=True)
    return 4
