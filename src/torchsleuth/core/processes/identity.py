"""Which process a number stands for: elsewhere, in another container, or later, a bare pid means another one.

Where /proc is missing (not Linux) what is not known is empty, and a pid counts as it stands.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from torchsleuth.core.processes.tree import is_alive, started_at
from torchsleuth.core.protocol.codec import from_json


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


def this_process() -> ProcessIdentity:
    """The process that asks: `this_process().pid == os.getpid()`."""
    return ProcessIdentity(os.getpid(), started_at(os.getpid()), *_here())


def identity_from_json(doc: Mapping[str, Any]) -> ProcessIdentity:
    """Which process a document names; raises ValueError where it names none, or says too little of it.

    >>> identity_from_json(vars(this_process())) == this_process()
    True
    """
    if not isinstance(doc, Mapping) or not {each.name for each in fields(ProcessIdentity)} <= doc.keys():
        raise ValueError("it does not say which process it belongs to")
    return from_json(ProcessIdentity, doc)


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
