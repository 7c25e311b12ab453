"""Which process a number stands for: elsewhere, in another container, or later, a bare pid means another one.

Where /proc is missing (not Linux) what is not known is empty, and a pid counts as it stands.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import Any

from torchsleuth.core.processes.tree import is_alive, started_at


@dataclass(frozen=True)
class ProcessIdentity:
    """One process for all time: `this_process().is_here`."""

    pid: int
    started: int = 0  # ticks of the kernel's clock
    host: str = ""
    boot: str = ""
    namespace: str = ""  # of pids: that of a container
    user: int = -1

    @property
    def is_here(self) -> bool:
        """Whether its pid can be looked up here: same machine, not started anew since, same container, same user."""
        return (self.host, self.boot, self.namespace, self.user) == _here()

    @property
    def is_alive(self) -> bool:
        """Whether that very process runs here.

        >>> this_process().is_alive, ProcessIdentity(os.getpid(), 1).is_alive
        (True, False)
        """
        return self.is_here and is_alive(self.pid) and started_at(self.pid) == self.started

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def this_process() -> ProcessIdentity:
    """The process that asks: `this_process().pid == os.getpid()`."""
    return ProcessIdentity(os.getpid(), started_at(os.getpid()), *_here())


def identity_from_json(doc: Mapping[str, Any]) -> ProcessIdentity:
    """What `to_json` wrote; raises ValueError where that is something else.

    >>> identity_from_json(this_process().to_json()) == this_process()
    True
    """
    values = [doc.get(each.name) if isinstance(doc, Mapping) else None for each in fields(ProcessIdentity)]
    kinds = (int, int, str, str, str, int)
    if any(not isinstance(value, kind) or isinstance(value, bool) for value, kind in zip(values, kinds)):
        raise ValueError("it does not say which process it belongs to")
    return ProcessIdentity(*values)  # type: ignore[arg-type]


@cache
def _here() -> tuple[str, str, str, int]:
    boot = namespace = ""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        pass
    return socket.gethostname(), boot, namespace, os.getuid()
