"""The flight recorder: what this process compiles and runs, on disk before it is tried.

Each watched process owns one folder of the spool. A graph's record is written before its compile starts;
a table of counters in a memory-mapped file says what is under way: a counter is odd while its compile or
call runs. Raising it costs two memory accesses, so it is kept up on every call, and whoever finds the
folder of a dead or stuck process can tell which graph it was in.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import json
import mmap
import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from torchsleuth.core.processes.tree import this_process
from torchsleuth.core.protocol.codec import to_json
from torchsleuth.core.protocol.failures import ComparedCall, Failure, GivenUp, LeftOut, Remark, UncaughtError
from torchsleuth.core.protocol.files import DISK_ERRORS, write_whole
from torchsleuth.core.watching import STACKS_SIGNAL
from torchsleuth.script_runtime.hiding import hide_in_words

# Two counters per graph and one pair for graph capture; a process with more graphs than this goes on,
# its later graphs are recorded but a crash in them is not told apart from one elsewhere.
MAX_GRAPHS = 16384
CAPTURE = 0
UNWRITTEN = 1  # the number of the error with which the first write failed; there is no graph 0
COUNTERS = "counters"
DEVICE_FAULT = "device-fault.txt"
UNCAUGHT = "uncaught.json"
REMARKS = "remarks.jsonl"
GIVEN_UP = "given-up.jsonl"
COUNTERS_BYTES = 16 * (MAX_GRAPHS + 1)


class Flight:
    """The records of one process. Created at the first compile, so that other processes leave no trace."""

    def __init__(self, spool: str, finish: Callable[[Flight], object] = lambda flight: None) -> None:
        """`finish` makes cases of what was reported at once, where nobody outside does so in the end."""
        self.finish = finish
        self.pid = os.getpid()
        self.folder = Path(spool) / f"p{self.pid}-{time.time_ns() % 10**9:09d}"
        self.folder.mkdir(mode=0o700, parents=True)
        self.lock = threading.Lock()
        self.graphs = 0
        self.failures = 0
        self.repeats = 0  # failures that are known already
        self.silent = False  # in a fork that must not be seen
        # By what failed and how: the number of the report, and how often it happened.
        self._seen: dict[tuple[str, ...], list[int]] = {}
        self.finished = 0  # how many of them are cases already, where that is done in this process
        self.counters = self._map_counters()
        self._stacks = self._prepare_stacks()
        write_json(self.folder / "process.json", _process_facts())
        atexit.register(self._close)

    def _map_counters(self) -> memoryview:
        """The counters as others see them; raises OSError where the disk has no room for them.

        A block that is missing when it is first written to would end the program with SIGBUS.
        """
        with open(self.folder / COUNTERS, "w+b") as file:
            _reserve(file, COUNTERS_BYTES)
            return memoryview(mmap.mmap(file.fileno(), COUNTERS_BYTES)).cast("Q")

    def _prepare_stacks(self) -> TextIO:
        """Lets a fatal signal, or a request from the supervisor, leave the stacks of all threads in a file."""
        file = open(self.folder / "stacks.txt", "w", encoding="utf-8")  # noqa: SIM115 - as long as the process
        if not faulthandler.is_enabled():
            faulthandler.enable(file=file, all_threads=True)
        faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True, chain=False)
        return file

    def continue_in_child(self, spool: str) -> None:
        """After a fork: the child gets a folder and counters of its own and refers to the parent's records."""
        parent = self.folder
        self.failures = self.finished = 0
        self._seen = {}
        self.pid = os.getpid()
        self.folder = Path(spool) / f"p{self.pid}-{time.time_ns() % 10**9:09d}"
        self.lock = threading.Lock()
        # The parent's are not for this process to count in, also where it gets none that others see.
        self.counters = memoryview(bytearray(COUNTERS_BYTES)).cast("Q")
        self.folder.mkdir(mode=0o700, parents=True)
        self.counters = self._map_counters()
        self._stacks = self._prepare_stacks()
        write_json(self.folder / "process.json", {**_process_facts(), "inherits": str(parent)})

    def new_graph(self) -> tuple[int, Path]:
        """The number of the next graph and the folder for its record."""
        with self.lock:
            self.graphs += 1
            number = self.graphs
        folder = self.folder / f"g{number}"
        folder.mkdir()
        return number, folder

    def compile_slot(self, number: int) -> int:
        return 2 * number if number <= MAX_GRAPHS else 2 * MAX_GRAPHS

    def run_slot(self, number: int) -> int:
        return self.compile_slot(number) + 1

    def seen_again(self, failure: tuple[str, ...]) -> bool:
        """Whether such a failure was reported before; then it is only counted. A program may catch it in a loop."""
        with self.lock:
            if failure not in self._seen:
                self._seen[failure] = [self.failures + 1, 1]
                return False
            self._seen[failure][1] += 1
            self.repeats += 1
            number, count = self._seen[failure]
        if count & (count - 1) == 0:  # now and then, as the process may die; in full when it ends
            self._write_count(number, count)
        return True

    def _write_count(self, number: int, count: int) -> None:
        with contextlib.suppress(OSError):
            write_json(self.folder / f"count-{number}.json", count)

    @property
    def failed(self) -> int:
        """How often something failed so far, known or not: whoever calls a graph sees by it whether one inside did."""
        return self.failures + self.repeats

    def report(self, failure: Failure) -> None:
        """Keeps one failure; the supervisor makes a case of it."""
        with self.lock:
            self.failures += 1
            path = self.folder / f"failure-{self.failures}.json"
        write_json(path, to_json(failure))
        self.finish(self)

    def log(self, text: str) -> None:
        """One line in this process's log; never raises."""
        if self.silent:
            return
        log = self.folder / "log.txt"
        with contextlib.suppress(OSError), open(log, "a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%H:%M:%S')} {text}\n")

    def went_wrong(self, error: Exception, in_words: str) -> None:
        """Notes an error in our own work: our mistake, or a disk without room; then also where that takes no room."""
        ours = "internal error: "
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            self.counters[UNWRITTEN], ours = self.counters[UNWRITTEN] or error.errno or 0, "not recorded: "
        self.log(f"{ours}{in_words}")

    def remark(self, remark: Remark) -> None:
        """Keeps what a check has to say of a graph that is no failure; never raises."""
        self._append(REMARKS, remark)

    def given_up(self, function: GivenUp) -> None:
        """Keeps a function that Dynamo gave up; never raises."""
        self._append(GIVEN_UP, function)

    def compared(self, call: ComparedCall) -> None:
        """Keeps what came of comparing a whole call; never raises."""
        self._append("compared.jsonl", call)

    def left_out(self, calls: LeftOut) -> None:
        """Keeps how many whole calls are still to be compared; never raises."""
        self._append("left-out.jsonl", calls)

    def _append(self, name: str, value: Remark | GivenUp | ComparedCall | LeftOut) -> None:
        if self.silent:
            return
        try:
            with open(self.folder / name, "a", encoding="utf-8") as file:
                file.write(json.dumps(to_json(value)) + "\n")
        except OSError as error:
            self.went_wrong(error, str(error))

    def device_failed(self, why: str) -> None:
        """Says that an accelerator had failed by the time the program ended."""
        with contextlib.suppress(OSError):
            (self.folder / DEVICE_FAULT).write_text(why, encoding="utf-8")

    def ended_with(self, error: UncaughtError) -> None:
        """Says which error the program ends with, that nobody caught."""
        with contextlib.suppress(OSError):
            write_json(self.folder / UNCAUGHT, to_json(error))

    def _close(self) -> None:
        if os.getpid() == self.pid:  # a forked child inherits this handler, but not the flight
            for number, count in self._seen.values():
                if count > 1:
                    self._write_count(number, count)
            with contextlib.suppress(OSError):
                (self.folder / "done").write_text("")


def _reserve(file: BinaryIO, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        file.write(bytes(size))
        file.flush()


def write_json(path: Path, value: Any) -> None:
    """Writes JSON so that a reader sees the whole file or none."""
    write_whole(path, json.dumps(value))


def _process_facts() -> dict[str, Any]:
    # LOCAL_RANK alone may be set by hand; RANK is what every launcher sets for each worker.
    rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or os.environ.get("OMPI_COMM_WORLD_RANK")
    return {
        "pid": os.getpid(),
        "identity": to_json(this_process()),
        "parent": os.getppid(),
        "argv": hide_in_words(sys.argv),
        "rank": int(rank) if rank and rank.isdigit() else None,
        "started": time.time(),
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "platform": platform.platform(),
    }
