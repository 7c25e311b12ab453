"""All that a verb prints goes through here: made safe for a terminal, and without secrets.

A case may come from a stranger, and a path, an error or the words of another process may carry what a case holds. So it
is not left to each verb to remember which of its strings do.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

import click

from torchsleuth.core.cases.printable import printable
from torchsleuth.script_runtime.hiding import hide_secrets

# A script that is shown in full, a log.
MOST_SHOWN = 1 << 20


def say(sentence: str, *, lines: bool = False) -> None:
    """A sentence on stderr, on one line unless `lines`: `say("stopped")`. Never raises: nobody may be there to read."""
    with contextlib.suppress(OSError, ValueError):
        click.echo(f"torchsleuth: {_safe(sentence, lines)}", err=True)


def show(line: str = "", *, lines: bool = False) -> None:
    """A line on stdout, for a person; several only where `lines` says so: `show("calls left: 1")`."""
    click.echo(_safe(line, lines))


def status(text: str) -> None:
    """The line on stderr that is written over and over in a terminal; an empty one ends it."""
    with contextlib.suppress(OSError, ValueError):
        click.echo(f"\r\x1b[2K{_safe(text)}" if text else "", err=True, nl=not text)


def print_json(document: Any) -> None:
    """One JSON document on stdout; its strings are escaped, so that a terminal obeys none of them."""
    click.echo(json.dumps(document, indent=1))


def _safe(text: str, lines: bool = False) -> str:
    return hide_secrets(printable(text, lines, MOST_SHOWN))
