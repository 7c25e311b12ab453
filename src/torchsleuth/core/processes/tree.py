"""What the operating system knows of our processes, how each of them is ended, and which one a number stands for.

Two nets catch what a trial starts: its session, killed as one group, and a token in its environment, which also
finds a process that left the group. Where /proc or prctl is missing (not Linux), the group alone is the net. A bare
pid means another process elsewhere, in another container, or later: `ProcessIdentity` is one process for all time.
What cannot be known is empty there, and a pid counts as it stands.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from torchsleuth.core.protocol.codec import Document, from_json

TOKEN = "TORCHSLEUTH_TRIALS"
# As long as a token, and nobody's.
UNMARKED = "0" * 32
# When the process was started, and where the environment begins, among what follows the name in /proc/PID/stat.
_STARTED = 19
_ENV_START = 47
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PAGE = resource.getpagesize()
_MOST_GENERATIONS = 50


def die_with(parent: int) -> None:
    """Ties this process's life to that of `parent`, which must have started it from its main thread.

    >>> die_with(os.getppid())
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the tie held
        os._exit(1)


def adopt_orphans() -> None:
    """Makes what our children leave behind our own children, so that it can be found and ended."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def be_first_to_go() -> None:
    """Asks the kernel to end this process before any other when memory runs out, and writes no core files."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def bound_processes(count: int) -> None:
    """Lets this user start at most `count` tasks beyond all that run on the machine now. Does not bind root."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    ceiling = tasks_running() + count
    if hard != resource.RLIM_INFINITY:
        ceiling = min(ceiling, hard)
    if soft == resource.RLIM_INFINITY or soft > ceiling:
        resource.setrlimit(resource.RLIMIT_NPROC, (ceiling, hard))


def _numbered(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.isdecimal()]
    except OSError:
        return []


def tasks_of(pid: int) -> list[int]:
    """The threads of a process by number, the first one's being its own; none where it has ended.

    >>> os.getpid() in tasks_of(os.getpid()) or not os.path.isdir("/proc/self")
    True
    """
    return [int(name) for name in _numbered(f"/proc/{pid}/task")]


def tasks_running() -> int:
    """How many tasks the whole machine has, from one small file; 0 where it cannot be known."""
    try:
        with open("/proc/loadavg", encoding="ascii") as file:
            return int(file.read().split()[3].partition("/")[2])
    except (OSError, ValueError, IndexError):
        return 0


def resident_bytes(pid: int) -> int:
    """Memory that process `pid` holds now: `resident_bytes(os.getpid()) > 0`; 0 where it has ended."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0


def descendants_of(ancestor: int) -> list[int]:
    """The living processes below `ancestor`, whatever session they moved to: `descendants_of(os.getpid())`."""
    children: dict[int, list[int]] = {}
    for entry in _numbered("/proc"):
        fields = _stat_fields(entry)
        if fields and fields[0] != "Z":
            children.setdefault(int(fields[1]), []).append(int(entry))
    found: list[int] = []
    level = children.get(ancestor, [])
    while level:
        found += level
        level = [child for pid in level for child in children.get(pid, [])]
    return found


def kill_descendants() -> None:
    """Ends all processes below this one; what one of them had started becomes our child, and may have some itself."""
    for _ in range(_MOST_GENERATIONS):
        if not (below := descendants_of(os.getpid())):
            break
        for pid in below:
            send(pid, signal.SIGKILL)
        time.sleep(0.01)


def _stat_fields(pid: str | int) -> list[str]:
    """State, parent, group, session, ... of a process; a name may hold anything, so what follows it counts."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def open_files(processes: Iterable[int]) -> set[str]:
    """The files that any of these processes has open: `open_files([os.getpid()])`; none where /proc is missing."""
    found = set()
    for pid in processes:
        for number in _numbered(f"/proc/{pid}/fd"):
            try:
                found.add(os.readlink(f"/proc/{pid}/fd/{number}"))
            except OSError:
                continue
    return found


def marked_processes(token: str) -> list[int]:
    """The living processes that were started with our token in their environment, this one excepted."""
    wanted = f"{TOKEN}={token}".encode()
    found = []
    for entry in _numbered("/proc"):
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                if wanted in file.read().split(b"\0") and int(entry) != os.getpid():
                    found.append(int(entry))
        except OSError:
            continue
    return found


def kill_group(leader: int) -> None:
    """Ends every process of the group at once; a fork bomb cannot outrun it: the kernel takes the group as one."""
    with contextlib.suppress(OSError):
        os.killpg(leader, signal.SIGKILL)


def end_all(processes: Iterable[int], patience: float) -> None:
    """Asks each process to end, and kills what is still there after `patience` seconds; waits for both.

    A number that stands for another process by then is left alone.
    """
    wanted = {pid: started_at(pid) for pid in processes}
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in _still(wanted):
            send(pid, number)
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and _still(wanted):
            time.sleep(0.05)


def _still(wanted: Mapping[int, int]) -> list[int]:
    return [pid for pid, started in wanted.items() if is_alive(pid) and started_at(pid) == started]


def started_at(pid: int) -> int:
    """When a process was started, in ticks since the machine was: two with one pid differ; 0 where it is not known."""
    fields = _stat_fields(pid)
    return int(fields[_STARTED]) if len(fields) > _STARTED else 0


def send(pid: int, number: int) -> None:
    """Sends a signal to a process that may have ended by itself."""
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def is_alive(pid: int) -> bool:
    """Whether a process with this id runs (a zombie does not): `is_alive(os.getpid())`."""
    fields = _stat_fields(pid)
    if fields:
        return fields[0] not in "ZX"
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return not os.path.isdir("/proc/self")


def kill_marked(token: str) -> int:
    """Ends every marked process, again until none is left that was started meanwhile; how many were found."""
    killed: set[int] = set()
    for _ in range(20):
        if not (found := marked_processes(token)):
            break
        killed.update(found)
        for pid in found:
            send(pid, signal.SIGKILL)
    return len(killed)


def children_of(parent: int) -> list[int]:
    """The direct children of a process, ended ones included: `children_of(os.getpid())`."""
    try:
        with open(f"/proc/{parent}/task/{parent}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:  # the kernel was built without that list
        return [int(e) for e in _numbered("/proc") if (f := _stat_fields(e)) and int(f[1]) == parent]


def mark_this_process(token: str) -> None:
    """Puts the token over `UNMARKED` in the environment that this process was started with.

    /proc shows that one, and a forked process shares it with its parent until it is written over. Where that
    cannot be done, a process forked from here that leaves its session is not found by `kill_marked`.
    """
    old, new = (f"{TOKEN}={value}".encode() for value in (UNMARKED, token))
    fields = _stat_fields("self")
    try:
        with open("/proc/self/environ", "rb") as file:
            place = file.read().find(old)
    except OSError:
        return
    if place >= 0 and len(old) == len(new) and len(fields) > _ENV_START and int(fields[_ENV_START]):
        ctypes.memmove(int(fields[_ENV_START]) + place, new, len(new))


def marked(environment: dict[str, str], token: str) -> dict[str, str]:
    """The environment with our token in it: `marked({}, "x")`."""
    return {**environment, TOKEN: token}


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


def identity_from_json(doc: Document) -> ProcessIdentity:
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
