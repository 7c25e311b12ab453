"""What is asked of a process from which others are forked (`child.server`), and what it says of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Join:
    """Another client may give orders, too, over the socket that comes along."""

    descriptors: int = 1


@dataclass(frozen=True)
class Become:
    """A process is to be forked that goes on as a script, or as a function of ours ("package.module:function").

    The function is called with `--control=N` for each of the `descriptors` that come along, and the arguments. Of the
    environment, None takes a variable away.
    """

    number: int
    stdout: str
    stderr: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str | None] = field(default_factory=dict)
    script: str = ""
    call: str = ""
    descriptors: int = 0


@dataclass(frozen=True)
class Kill:
    """The process of that number is to end, with everything in its session."""

    number: int


@dataclass(frozen=True)
class Forked:
    """The process of that number is there."""

    number: int
    pid: int


@dataclass(frozen=True)
class Ended:
    """The process of that number has ended with a status, as `subprocess` reports it."""

    number: int
    code: int
