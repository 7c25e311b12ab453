"""How the front ends: asked by a signal, with nobody left to read, or by a mistake of its own."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from torchsleuth.core.protocol.files import DISK_ERRORS
from torchsleuth.front.cli.output import say


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
