"""What watched processes leave behind: records of graphs, reports of failures, counters of what is under way.

Read from outside, also when the process that wrote it is dead or stuck. A counter that is odd says that the
compile or call it stands for has begun and not ended; the innermost of those is where the process is.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from torchsleuth.core.cases.door import NotRead, is_file_inside, json_inside, read_inside, text_inside
from torchsleuth.core.cases.record import read_record, record_at
from torchsleuth.core.processes.tree import ProcessIdentity, identity_from_json
from torchsleuth.core.protocol.codec import Document, WrongShape, from_json
from torchsleuth.core.protocol.failures import ComparedCall, Failure, GivenUp, LeftOut, Remark, UncaughtError
from torchsleuth.script_runtime.signature import Signature

Told = TypeVar("Told", Remark, GivenUp, ComparedCall, LeftOut)

CAPTURE, UNWRITTEN = 0, 1
# Bytes without which a process cannot be watched: its counters.
LEAST_ROOM = 300_000
# A program may fork, and its children fork in turn; nobody's records are inherited through more than this.
MOST_GENERATIONS = 100
# What led to a failure stands at the end of a log.
MOST_LOG = 2 << 20


@dataclass(frozen=True)
class UnderWay:
    """A compile or call that has begun and not ended. `count` changes whenever it is entered anew.

    `calls` are the graphs of which a call is under way, the one around it as well, with the number of that call.
    """

    record: Path | None
    phase: str
    count: int
    calls: tuple[tuple[Path, int], ...] = ()


@dataclass(frozen=True)
class WatchedProcess:
    """The folder of one watched process and what it says about the process."""

    folder: Path
    facts: Document

    @property
    def identity(self) -> ProcessIdentity:
        """Raises a ValueError where the process did not say."""
        return identity_from_json(self.facts.get("identity") or {})

    @property
    def is_alive(self) -> bool:
        """Whether that very process runs here, and not another one that got its number."""
        try:
            return self.identity.is_alive
        except ValueError:
            return False

    @property
    def pid(self) -> int:
        return int(self.facts["pid"])

    @property
    def rank(self) -> int | None:
        return self.facts.get("rank")

    @property
    def finished(self) -> bool:
        return is_file_inside(self.folder, "done")

    def stacks(self) -> str:
        return _text(self.folder, "stacks.txt")

    def log(self) -> str:
        return _text(self.folder, "log.txt")

    def compiler_log(self) -> str:
        """The end of what the compiler logged in this process (`--log`); empty where nobody asked for it."""
        try:
            return text_inside(self.folder.parent, f"compiler-{self.pid}.log", 80 << 20)[-MOST_LOG:]
        except NotRead:
            return ""

    def device_fault(self) -> str:
        """How an accelerator had failed by the end of the process; empty where none had."""
        return _text(self.folder, "device-fault.txt")

    def remarks(self) -> list[Remark]:
        """What checks of graphs showed that is no failure, one for each graph and kind: the one that says most."""
        found: dict[tuple[int, str], Remark] = {}
        for remark in self._lines("remarks.jsonl", Remark):
            known = found.setdefault((remark.graph, remark.kind), remark)
            if remark.times_eager > known.times_eager:
                found[remark.graph, remark.kind] = remark
        return list(found.values())

    def given_up(self) -> list[GivenUp]:
        """The functions that Dynamo gave up in this process, each once: Python ran them uncompiled."""
        return list(dict.fromkeys(self._lines("given-up.jsonl", GivenUp)))

    def compared_calls(self) -> list[ComparedCall]:
        """What came of the whole calls that this process was there to compare."""
        return list(self._lines("compared.jsonl", ComparedCall))

    def left_out(self) -> LeftOut | None:
        """The whole calls that are still to be compared; None where there are none."""
        return next(self._lines("left-out.jsonl", LeftOut), None)

    def _lines(self, name: str, kind: type[Told]) -> Iterator[Told]:
        for line in _text(self.folder, name).splitlines():
            # The last line of a process that was killed may be half of one.
            with contextlib.suppress(ValueError):
                yield from_json(kind, json.loads(line))

    def uncaught(self) -> UncaughtError | None:
        """The error that nobody caught and the process ended with; None where there was none, or it cannot be read."""
        try:
            return from_json(UncaughtError, json_inside(self.folder, "uncaught.json"))
        except (NotRead, WrongShape):
            return None

    def graph_folders(self) -> list[Path]:
        """The records of this process and of those it was forked from, by number."""
        found: list[Path] = []
        process: WatchedProcess | None = self
        for _ in range(MOST_GENERATIONS):
            if process is None:
                break
            found = process._own_graphs() + found
            process = process._parent()
        return found

    def _own_graphs(self) -> list[Path]:
        own = [p for p in self.folder.glob("g*") if re.fullmatch(r"g\d{1,9}", p.name) and _is_folder(p)]
        return sorted(own, key=lambda p: int(p.name[1:]))

    def _parent(self) -> WatchedProcess | None:
        """The process this one was forked from, whose folder lies beside its own."""
        inherits = self.facts.get("inherits")
        folder = (
            self.folder.with_name(Path(inherits).name) if isinstance(inherits, str) and inherits else None
        )
        if folder is None or folder == self.folder or not _is_folder(folder):
            return None
        try:
            return read_process(folder)
        except NotRead:
            return None

    def captured_graphs(self) -> int:
        """How many graphs were captured in this process itself; each may have several aten graphs."""
        records = filter(None, map(record_at, self._own_graphs()))
        return sum(record.settings.level == "dynamo" or record.outer is None for record in records)

    def failures(self) -> list[Failure]:
        """What the process reported, in order; raises `NotRead` where a report is none."""
        names = [p.name for p in self.folder.glob("failure-*.json")]
        numbered = sorted((int(m[1]), m[0]) for m in map(_FAILURE.fullmatch, names) if m)
        return [self._failure(name) for _, name in numbered]

    def _failure(self, name: str) -> Failure:
        """One report; the record it names must be one of this process's own."""
        try:
            failure = from_json(Failure, json_inside(self.folder, name))
        except WrongShape as why:
            raise NotRead(f"{name} does not report a failure ({why})") from why
        if failure.record is not None and failure.record not in map(str, self.graph_folders()):
            raise NotRead(f"{name} names a record that is none of this process's")
        return replace(failure, count=self._count(name))

    def _count(self, name: str) -> int:
        """How often it happened; the last occurrences before a death may be missing."""
        try:
            count = json_inside(self.folder, name.replace("failure", "count"), 100)
        except NotRead:
            return 1
        return count if isinstance(count, int) and 0 < count < 1 << 60 else 1

    def unwritten(self) -> str | None:
        """Why something could not be recorded by this process, in the system's words; None where all was."""
        try:
            data = read_inside(self.folder, "counters", 1 << 24)[8 * UNWRITTEN : 8 * UNWRITTEN + 8]
        except NotRead:
            return None
        number = int.from_bytes(data, "little")
        return os.strerror(number) if 0 < number < 1 << 16 else None

    def under_way(self) -> UnderWay | None:
        """Where this process is, or was when it died; None where no compile or compiled call is open."""
        folders = {int(p.name[1:]): p for p in self.graph_folders()}
        try:
            data = read_inside(self.folder, "counters", 1 << 24)[: 16 * (max(folders, default=0) + 1)]
        except NotRead:
            return None
        counters = struct.unpack(f"<{len(data) // 8}Q", data[: len(data) // 8 * 8])
        open_slots = [
            i for i, count in enumerate(counters) if count % 2 and i != CAPTURE and i // 2 in folders
        ]
        if open_slots:
            slot = max(open_slots, key=lambda i: (_is_aten(folders[i // 2]), i // 2))
            calls = tuple((folders[i // 2], (counters[i] + 1) // 2) for i in open_slots if i % 2)
            return UnderWay(folders[slot // 2], "run" if slot % 2 else "compile", counters[slot], calls)
        if counters and counters[CAPTURE] % 2:
            return UnderWay(None, "capture", counters[CAPTURE])
        return None


_FAILURE = re.compile(r"failure-(\d{1,9})\.json")


def read_process(folder: Path) -> WatchedProcess:
    """The watched process whose folder this is; raises `NotRead` where it is none."""
    facts = json_inside(folder, "process.json")
    known = isinstance(facts, dict) and isinstance(facts.get("pid"), int)
    argv = facts.get("argv") if known else None
    if not known or not isinstance(argv, list) or not isinstance(facts.get("started"), (int, float)):
        raise NotRead("process.json does not describe a process")
    if not isinstance(facts.get("rank"), int | None) or not all(isinstance(word, str) for word in argv):
        raise NotRead("process.json does not describe a process")
    return WatchedProcess(folder, facts)


def watched_processes(spool: Path) -> list[WatchedProcess]:
    """All processes of one run that reached the compiler, in the order in which they did; unreadable ones left out."""
    found = []
    for folder in spool.glob("p*"):
        try:
            if _is_folder(folder):
                found.append(read_process(folder))
        except NotRead:
            continue
    return sorted(found, key=lambda process: process.facts["started"])


def crash_failure(where: UnderWay, signal: str, stacks: str) -> Failure:
    """The failure that a process's death stands for, in the form in which living processes report theirs."""
    return _lost(where, Signature("crash", where.phase, signal=signal), stacks)


def hang_failure(where: UnderWay, stacks: str, seconds: float) -> Failure:
    """The failure that a compile or call which does not end stands for."""
    return replace(_lost(where, Signature("hang", where.phase), stacks), timeout=seconds)


def _lost(where: UnderWay, signature: Signature, stacks: str) -> Failure:
    calls = ((read_record(folder / "record.json").hash, number) for folder, number in where.calls)
    record = None if where.record is None else str(where.record)
    return Failure(signature, stacks, time.time(), record=record, calls=tuple(calls))


def _is_aten(folder: Path) -> bool:
    """Whether a graph is one that AOTAutograd made."""
    return (record := record_at(folder)) is not None and record.settings.level == "aot"


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _text(folder: Path, name: str) -> str:
    try:
        return text_inside(folder, name)
    except NotRead:
        return ""
