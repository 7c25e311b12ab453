"""What whoever starts a program asks of the watch in it: one frozen value, and what collectors are told beside it.

All of it travels in environment variables, so that processes that the program starts are watched as well.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import asdict, dataclass

WATCH_VARIABLE = "TORCHSLEUTH_WATCH"
# Names the collectors of `watched/observe/` that are switched on, comma separated.
OBSERVE_VARIABLE = "TORCHSLEUTH_OBSERVE"
# Set where the trace is to have each bytecode instruction.
INSTRUCTIONS_VARIABLE = "TORCHSLEUTH_TRACE_INSTRUCTIONS"
# The kinds of artefacts that the debug folder is to hold, comma separated.
ARTEFACTS_VARIABLE = "TORCHSLEUTH_ARTEFACTS"
TORCH_TRACE = "torch-trace"
# The parts of the compiler whose log is kept, comma separated.
LOG_VARIABLE = "TORCHSLEUTH_LOG"

# Not used by any library we know of; it only makes the stacks of all threads be written to a file.
STACKS_SIGNAL = int(signal.SIGRTMAX) - 7 if hasattr(signal, "SIGRTMAX") else int(signal.SIGUSR2)


@dataclass(frozen=True)
class Settings:
    """How to watch. `spool` is the folder of this run, where each process keeps its own records; `keep` are the graphs,
    by the hash of their record, and the number of the call before which everything that it sees is kept;
    `synchronised` waits for the device after every compiled call, so that its errors show in the call that made them;
    without `watches_failures` nothing is watched for failures, and only what collectors are asked for is done.

    >>> Settings(spool="/tmp/spool", level=4).checks_accuracy
    True
    """

    spool: str
    level: int = 2
    after: str = "auto"
    only: str | None = None
    keep_going: bool = False
    check_every: int = 0
    keep: tuple[tuple[str, int], ...] = ()
    synchronised: bool = False
    watches_failures: bool = True

    @property
    def checks_accuracy(self) -> bool:
        return self.level >= 4

    def to_environment(self) -> dict[str, str]:
        return {WATCH_VARIABLE: json.dumps(asdict(self))}


def settings_from_environment() -> Settings | None:
    """The settings this process was started with, or None where it is not watched."""
    text = os.environ.get(WATCH_VARIABLE)
    if not text:
        return None
    given = json.loads(text)
    return Settings(**{**given, "keep": tuple((graph, call) for graph, call in given.get("keep", ()))})
