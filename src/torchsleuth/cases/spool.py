"""What watched processes leave behind: records of graphs, reports of failures, counters of what is under way.

Read from outside, also when the process that wrote it is dead or stuck. A counter that is odd says that the
compile or call it stands for has begun and not ended; the innermost of those is where the process is.
"""

from __future__ import annotations

import json
import re
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchsleuth.cases.record import read_record
from torchsleuth.script_runtime.signature import Signature

CAPTURE = 0


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
    facts: dict[str, Any]

    @property
    def pid(self) -> int:
        return int(self.facts["pid"])

    @property
    def rank(self) -> int | None:
        return self.facts.get("rank")

    @property
    def finished(self) -> bool:
        return (self.folder / "done").exists()

    def stacks(self) -> str:
        return _read(self.folder / "stacks.txt")

    def log(self) -> str:
        return _read(self.folder / "log.txt")

    def graph_folders(self) -> list[Path]:
        """The records of this process and of those it was forked from, by number."""
        inherits = self.facts.get("inherits")
        earlier = []
        if inherits and Path(inherits) != self.folder and (Path(inherits) / "process.json").exists():
            earlier = read_process(Path(inherits)).graph_folders()
        own = [p for p in self.folder.glob("g*") if re.fullmatch(r"g\d+", p.name)]
        return earlier + sorted(own, key=lambda p: int(p.name[1:]))

    def captured_graphs(self) -> int:
        """How many graphs Dynamo captured in this process; each may have several aten graphs."""
        return sum(_level(folder) == "dynamo" for folder in self.graph_folders())

    def failures(self) -> list[dict[str, Any]]:
        found = list(self.folder.glob("failure-*.json"))
        found.sort(key=lambda p: int(p.stem.partition("-")[2]))
        return [json.loads(p.read_text(encoding="utf-8")) for p in found]

    def under_way(self) -> UnderWay | None:
        """Where this process is, or was when it died; None where no compile or compiled call is open."""
        folders = {int(p.name[1:]): p for p in self.graph_folders()}
        try:
            with open(self.folder / "counters", "rb") as file:
                data = file.read(16 * (max(folders, default=0) + 1))
        except OSError:
            return None
        counters = struct.unpack(f"<{len(data) // 8}Q", data)
        open_slots = [
            i for i, count in enumerate(counters) if count % 2 and i != CAPTURE and i // 2 in folders
        ]
        if open_slots:
            slot = max(open_slots, key=lambda i: (_level(folders[i // 2]) == "aot", i // 2))
            calls = tuple((folders[i // 2], (counters[i] + 1) // 2) for i in open_slots if i % 2)
            return UnderWay(folders[slot // 2], "run" if slot % 2 else "compile", counters[slot], calls)
        if counters and counters[CAPTURE] % 2:
            return UnderWay(None, "capture", counters[CAPTURE])
        return None


def read_process(folder: Path) -> WatchedProcess:
    """The watched process whose folder this is."""
    return WatchedProcess(folder, json.loads((folder / "process.json").read_text(encoding="utf-8")))


def watched_processes(spool: Path) -> list[WatchedProcess]:
    """All processes of one run that reached the compiler, in the order in which they did."""
    found = [read_process(p.parent) for p in spool.glob("p*/process.json")]
    return sorted(found, key=lambda process: process.facts["started"])


def crash_failure(where: UnderWay, signal: str, stacks: str) -> dict[str, Any]:
    """The failure that a process's death stands for, in the form in which living processes report theirs."""
    return _lost(where, Signature("crash", where.phase, signal=signal), stacks)


def hang_failure(where: UnderWay, stacks: str, seconds: float) -> dict[str, Any]:
    """The failure that a compile or call which does not end stands for."""
    return {**_lost(where, Signature("hang", where.phase), stacks), "timeout": seconds}


def _lost(where: UnderWay, signature: Signature, stacks: str) -> dict[str, Any]:
    return {
        "record": None if where.record is None else str(where.record),
        "signature": signature.to_json(),
        "traceback": stacks,
        "inputs": None,
        "calls": [[read_record(folder / "record.json").hash, number] for folder, number in where.calls],
        "time": time.time(),
    }


def _level(folder: Path) -> str | None:
    try:
        return read_record(folder / "record.json").settings.level
    except (OSError, ValueError):
        return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
