"""The fault matrix: every fault in every step, one cell at a time, each in a folder of its own.

A cell plants one fault, runs one command of torchsleuth and then looks: the program printed and ended as it does without
us, every case can be read, the best script of it is still there, and ten seconds later there is no process and no
temporary folder. `python tests/faults/matrix.py --jobs 2 [--row REGEX] [--column REGEX]` prints the table.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "kit"))
from program_runs import environment
from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.folder import open_case

COLUMNS = ("watching", "recording", "verifying", "triage", "minify", "workaround")
SEARCHES = ("triage", "minify", "workaround")
# What the graph does when it is compiled.
PLANTED = {
    "exception": "raise",
    "SIGSEGV": "segv",
    "SIGABRT": "abort",
    "SIGBUS": "bus",
    "OOM kill": "kill",
    "hang in Python": "hang",
    "hang in C": "native_hang",
    "os._exit": "exit",
}
DISKS = {"disk full": "ENOSPC", "read-only folder": "EROFS"}
# A small disk of its own, where one can be mounted: bytes that it holds.
SMALL_DISKS = (0, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20)
KILLS = ("KILL", "TERM", "HUP", "INT")
VICTIMS = ("front", "search host", "fork server", "trial child", "program")
LEFT_SECONDS, BUDGET, HANG_SECONDS = 10.0, "40", "6"
# A loaded machine is slower, and a front that does not end at all is what is looked for.
PATIENCE = 240.0

PROGRAM = """
import torch
print("before", flush=True)
f = torch.compile(lambda x: (x + 1).cos().sin().exp())
print(f(torch.ones(8)).sum().item(), flush=True)
"""
# For what happens to processes while they are watched: it has compiled, and takes a while.
WAITS = """
import sys, time, torch
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
print("before", flush=True)
open("ready", "w").close()
time.sleep(4)
print("after", flush=True)
sys.exit(5)
"""


class Wrong(Exception):
    """What a cell found that must not be."""


class NotHere(Exception):
    """This machine does not allow what the cell needs."""


@dataclass
class Cell:
    """One fault in one step, and the folder in which that happens."""

    row: str
    column: str
    root: Path
    extra: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder = self.root / re.sub(r"\W+", "_", f"{self.row}-{self.column}")
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "tmp").mkdir(parents=True)
        self.mark = f"cell-{os.urandom(8).hex()}"

    @property
    def cases(self) -> Path:
        return self.folder / "cases"

    def environment(self, fault: str | None) -> dict[str, str]:
        own = {
            "TMPDIR": str(self.folder / "tmp"),
            "TORCHSLEUTH_CASES": str(self.cases),
            "SLEUTH_CELL": self.mark,
            "XDG_STATE_HOME": str(self.root / "state"),
        }
        return {**environment(self.folder, fault), **own, **self.extra}

    def start(self, *arguments: str, fault: str | None = None, ours: bool = True) -> subprocess.Popen[bytes]:
        command = [sys.executable, *(["-m", "torchsleuth"] if ours else []), *arguments]
        with open(self.folder / "stdout", "wb") as out, open(self.folder / "stderr", "wb") as err:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment(f"aten.sin.default:{fault}" if fault else None),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def ended(self, front: subprocess.Popen[bytes]) -> int:
        """The status as a shell says it."""
        try:
            code = front.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise Wrong(f"it does not end: {self.said[-200:]}") from None
        if "bug in torchsleuth" in self.said:
            raise Wrong(self.said[self.said.index("bug in torchsleuth") :][:300])
        return 128 - code if code < 0 else code

    @property
    def said(self) -> str:
        return (self.folder / "stderr").read_text(errors="replace")

    @property
    def printed(self) -> str:
        return (self.folder / "stdout").read_text(errors="replace")

    def processes(self) -> list[int]:
        """Everything that was started by this cell and lives."""
        found = []
        for entry in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                state = Path("/proc", entry, "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
                if self.mark.encode() in Path("/proc", entry, "environ").read_bytes() and state not in "ZX":
                    found.append(int(entry))
        return found

    def check_left(self) -> None:
        deadline = time.monotonic() + LEFT_SECONDS
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(0.2)
        for pid in self.processes():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if left:
            raise Wrong(f"left: {left[:4]}")

    def _left(self) -> list[str]:
        processes = [f"process {command(pid)[-60:]}" for pid in self.processes()]
        # torch keeps its precompiled headers there, as it does without us.
        folders = [p.name for p in (self.folder / "tmp").iterdir() if not p.name.startswith("torchinductor_")]
        made = {
            "tmp",
            "cases",
            "cache",
            "stdout",
            "stderr",
            "ready",
            "program.py",
            "healthy.py",
            "__pycache__",
        }
        return processes + folders + [p.name for p in self.folder.iterdir() if p.name not in made]

    def check_cases(self, scripts: bool = False) -> None:
        """Every case can be read; with `scripts` each has the ones it had."""
        for folder in self.cases.glob("[!.]*"):
            try:
                case = open_case(self.cases, str(folder))
            except SleuthError as why:
                raise Wrong(f"a damaged case: {why}") from why
            if scripts:
                for name in ("original.py", "repro.py"):
                    if (folder / f".had-{name}").exists() and not case.has(name):
                        raise Wrong(f"{name} is gone")
                    if case.has(name):
                        compile(case.text(name), name, "exec")


def command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    return ""


def below(pid: int) -> list[int]:
    """The children of a process, oldest first."""
    found = []
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError, IndexError):
            facts = Path("/proc", entry, "stat").read_text(errors="replace").rpartition(")")[2].split()
            if int(facts[1]) == pid and facts[0] not in "ZX":
                found.append((int(facts[19]), int(entry)))
    return [child for _, child in sorted(found)]


def victim_of(front: int, who: str) -> int | None:
    """The process that is meant, once it is there."""
    if who == "front":
        return front
    children = below(front)
    if who == "program":
        programs = [pid for pid in children if re.search(r"(program|original|repro)\.py", command(pid))]
        return programs[0] if programs else None
    # All are forks of the prepared interpreter: the host is its first child, the server of the trials its next.
    prepared = [pid for pid in children if "trials.interpreter" in command(pid)]
    forks = below(prepared[0]) if prepared else []
    if who == "search host":
        return forks[0] if len(forks) > 1 else None
    servers = [pid for pid in forks[1:] if below(pid)]
    if who == "fork server":
        return servers[0] if servers else None
    return below(servers[0])[-1] if servers else None


# -- what the cells do


def made_case(root: Path, act: str) -> Path:
    """A case of that planted fault, with its script; made once and kept."""
    home = root / "made"
    home.mkdir(parents=True, exist_ok=True)
    with open(home / f"{act}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / act).is_dir():
            cell = Cell(f"made {act}", "case", root)
            (cell.folder / "program.py").write_text(PROGRAM)
            cell.ended(cell.start("run", "--record-only", "--timeout", HANG_SECONDS, "program.py", fault=act))
            cases = list(cell.cases.glob("*/case.json"))
            if not cases:
                raise Wrong(f"no case to begin with: {cell.said[-200:]}")
            shutil.copytree(cases[0].parent, home / act)
    return home / act


def copied(cell: Cell, act: str) -> str:
    """The id of such a case in the folder of the cell."""
    source = made_case(cell.root, act)
    name = json.loads((source / "case.json").read_text())["id"]
    target = cell.cases / name
    shutil.copytree(source, target)
    for script in ("original.py", "repro.py"):
        if (target / script).exists():
            (target / f".had-{script}").touch()
    return name


def verb(cell: Cell, name: str) -> tuple[str, ...]:
    if cell.column == "verifying":
        return ("verify", name, "--yes", "--times", "1", "--timeout", "8")
    return (cell.column, name, "--yes", "--budget", BUDGET)


def planted(cell: Cell) -> None:
    act = PLANTED[cell.row]
    hangs = "hang" in act
    if cell.column in ("verifying", *SEARCHES):
        status = cell.ended(cell.start(*verb(cell, copied(cell, act)), fault=act))
        if status not in (0, 1):
            raise Wrong(f"status {status}: {cell.said[-200:]}")
        if cell.column == "verifying" and status and "without the compiler" not in cell.said:
            raise Wrong(f"it is not reproduced: {cell.said[-200:]}")
        cell.check_cases(scripts=True)
        return
    (cell.folder / "program.py").write_text(PROGRAM)
    expected = None
    if not hangs:
        bare = cell.ended(cell.start("program.py", fault=act, ours=False))
        expected = (bare, cell.printed)
    status = cell.ended(
        cell.start("run", "--record-only", "--timeout", HANG_SECONDS, "program.py", fault=act)
    )
    if expected is not None and (status, cell.printed) != expected:
        raise Wrong(f"the program: {(status, cell.printed)} for {expected}")
    if cell.printed != "before\n":
        raise Wrong(f"it printed {cell.printed!r}")
    cell.check_cases()
    if cell.column == "recording" and not list(cell.cases.glob("*/case.json")):
        raise Wrong(f"no case: {cell.said[-200:]}")


def broken_disk(cell: Cell) -> None:
    """The disk refuses from one write of each process on: every write in turn."""
    last = 1 if cell.row == "read-only folder" else writes_of(cell)
    for number in range(1, last + 1):
        prepare(cell)
        cell.extra = {"SLEUTH_TEST_DISK": f"{DISKS[cell.row]}:{number}:{cell.cases}"}
        on_broken_disk(cell, f"write {number}")


def writes_of(cell: Cell) -> int:
    """How many writes below the cases the process makes that makes most."""
    prepare(cell)
    counts = cell.folder / "tmp" / "counts"
    counts.mkdir()
    cell.extra = {"SLEUTH_TEST_DISK": f"ENOSPC:1:{cell.cases}", "SLEUTH_TEST_WRITES": str(counts)}
    cell.ended(cell.start(*disk_command(cell), fault="raise"))
    found = max(path.stat().st_size for path in counts.iterdir())
    shutil.rmtree(counts)
    return found


def small_disk(cell: Cell) -> None:
    """The cases lie on a disk that is full after so many bytes; nothing is planted but the disk itself."""
    for size in SMALL_DISKS:
        prepare(cell)
        kept = cell.folder / "tmp" / "kept"
        if cell.cases.exists():
            cell.cases.rename(kept)
        cell.cases.mkdir()
        used = sum(path.stat().st_size + 4096 for path in kept.rglob("*")) if kept.exists() else 0
        options = f"size={used + size + 4096},mode=700"
        if subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", cell.cases], capture_output=True
        ).returncode:
            raise NotHere("no disk can be mounted")
        try:
            if kept.exists():
                shutil.copytree(kept, cell.cases, dirs_exist_ok=True)
                shutil.rmtree(kept)
            on_broken_disk(cell, f"{size} bytes")
        finally:
            subprocess.run(["umount", "--lazy", cell.cases], check=True)


def prepare(cell: Cell) -> None:
    """The folder of the cell as it is before the command that meets the disk."""
    shutil.rmtree(cell.cases, ignore_errors=True)
    cell.extra = {}
    if cell.column in ("watching", "recording"):
        (cell.folder / "program.py").write_text(PROGRAM)
    else:
        copied(cell, "raise")


def disk_command(cell: Cell) -> tuple[str, ...]:
    if cell.column in ("watching", "recording"):
        return ("run", "--record-only", "program.py")
    return verb(cell, "last")


def on_broken_disk(cell: Cell, where: str) -> None:
    arguments = disk_command(cell)
    status = cell.ended(cell.start(*arguments, fault="raise"))
    if "Traceback" in cell.said and "torchsleuth/front/cli" in cell.said:
        raise Wrong(f"{where}: a traceback of ours: {cell.said[-300:]}")
    refused = status == 2 and cell.row == "read-only folder"  # before anything is started
    if arguments[0] == "run" and not refused and (status, cell.printed) != (1, "before\n"):
        raise Wrong(f"{where}: the program: {status}, {cell.printed!r}, {cell.said[-300:]}")
    if arguments[0] != "run" and status not in (0, 1, 2):  # 2: there is nowhere to write
        raise Wrong(f"{where}: status {status}: {cell.said[-200:]}")
    cell.extra = {}
    cell.check_cases(scripts=True)
    cell.check_left()


def killed(cell: Cell) -> None:
    name, _, who = cell.row.partition(" of ")
    number = signal.Signals[f"SIG{name}"]
    if cell.column == "watching":
        _killed_while_watching(cell, number, who)
        return
    if cell.column == "recording":
        (cell.folder / "program.py").write_text(PROGRAM)
        cell.extra = {"SLEUTH_TEST_PAUSE": str(cell.folder / "ready")}
        front = cell.start("run", "--record-only", "program.py", fault="raise")
        _until(cell, front, (cell.folder / "ready").exists)
    else:
        act = "hang" if cell.column == "verifying" else "raise"
        front = cell.start(*verb(cell, copied(cell, act)), fault=act)
        works = "program" if cell.column == "verifying" else "trial child"
        _until(cell, front, lambda: victim_of(front.pid, works) is not None)
    _until(cell, front, lambda: victim_of(front.pid, who) is not None)
    found = victim_of(front.pid, who)
    time.sleep(0.5)  # so that it is at something
    if found is not None:  # a trial may have ended by now: then there is nothing to survive
        with contextlib.suppress(OSError):
            os.kill(found, number)
    status = cell.ended(front)
    expected = {128 + number} if who == "front" else {0, 1}
    if who == "front" and cell.column == "recording":
        expected.add(1)  # the program has ended, and so do we with its status
    if status not in expected:
        raise Wrong(f"status {status}: {cell.said[-200:]}")
    cell.check_cases(scripts=True)
    if cell.column == "recording":  # nothing is lost: the next run makes the case
        cell.check_left()
        (cell.folder / "healthy.py").write_text("print('healthy')")
        cell.ended(cell.start("run", "healthy.py"))
        if not list(cell.cases.glob("*/case.json")):
            raise Wrong(f"the record is lost: {cell.said[-200:]}")


def _killed_while_watching(cell: Cell, number: signal.Signals, who: str) -> None:
    (cell.folder / "program.py").write_text(WAITS)
    front = cell.start("run", "program.py")
    _until(cell, front, (cell.folder / "ready").exists)
    pid = victim_of(front.pid, who)
    if pid is None:
        raise Wrong("there is no program")
    os.kill(pid, number)
    status = cell.ended(front)
    if status != 128 + number:
        raise Wrong(f"status {status} for {128 + number}: {cell.said[-200:]}")
    if who == "front" and number == signal.SIGKILL:  # the program is the person's, and goes on
        deadline = time.monotonic() + 30
        while "after" not in cell.printed and time.monotonic() < deadline:
            time.sleep(0.1)
        if cell.printed != "before\nafter\n":
            raise Wrong(f"the program did not go on: {cell.printed!r}")
    cell.check_cases()


def _until(cell: Cell, front: subprocess.Popen[bytes], what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not what():
        if front.poll() is not None:
            raise Wrong(f"it ended before: status {front.returncode}: {cell.said[-200:]}")
        if time.monotonic() > deadline:
            raise Wrong("there is no such process")
        time.sleep(0.02)


def rows() -> dict[str, Callable[[Cell], None]]:
    """Every row of the matrix, and what does it."""
    kills = [f"{name} of {who}" for who in VICTIMS for name in KILLS]
    return {
        **dict.fromkeys(PLANTED, planted),
        **dict.fromkeys(DISKS, broken_disk),
        "small disk": small_disk,
        **dict.fromkeys(kills, killed),
    }


def senseless(row: str, column: str) -> str | None:
    """Why there is no such cell."""
    who = row.partition(" of ")[2]
    if not who or who == "front":
        return None
    if who == "program":
        if column == "recording":
            return "the program has ended"
        return "no program runs" if column in SEARCHES else None
    return None if column in SEARCHES else f"there is no {who} yet"


def run_cell(row: str, column: str, root: Path) -> str:
    """ "ok", "-", or what is wrong."""
    if senseless(row, column):
        return "-"
    cell = Cell(row, column, root)
    try:
        rows()[row](cell)
        cell.check_left()
    except NotHere:
        return "-"
    except Wrong as why:
        with contextlib.suppress(Wrong):
            cell.check_left()
        return f"FAIL {why}"
    shutil.rmtree(cell.folder, ignore_errors=True)
    return "ok"


def table(found: dict[tuple[str, str], str]) -> Iterator[str]:
    """The matrix as Markdown; a cell that was not run is empty."""
    yield "| fault | " + " | ".join(COLUMNS) + " |"
    yield "|---" * (len(COLUMNS) + 1) + "|"
    for row in rows():
        cells = [
            "-" if senseless(row, column) else found.get((row, column), "")[:4].strip() for column in COLUMNS
        ]
        yield f"| {row} | " + " | ".join(cells) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--row", default="", help="only rows that this matches")
    parser.add_argument("--column", default="", help="only columns that this matches")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    # A shell that starts this in the background has these ignored, and so would every front.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    wanted = [
        (row, column)
        for row in rows()
        for column in COLUMNS
        if re.search(options.row, row) and re.search(options.column, column) and not senseless(row, column)
    ]
    found: dict[tuple[str, str], str] = {}
    with tempfile.TemporaryDirectory() as root, ThreadPoolExecutor(options.jobs) as pool:

        def one(cell: tuple[str, str]) -> None:
            began = time.monotonic()
            found[cell] = run_cell(*cell, Path(root))
            took = time.monotonic() - began
            print(f"{cell[0]}, {cell[1]}: {found[cell]} ({took:.0f} s)", file=sys.stderr, flush=True)

        list(pool.map(one, wanted))
    print("\n".join(table(found)))
    return int(any(each.startswith("FAIL") for each in found.values()))


if __name__ == "__main__":
    sys.exit(main())
