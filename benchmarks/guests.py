"""Healthy programs are left as they are: each runs bare, under `run`, and under `run --check-accuracy`.

    python benchmarks/guests.py [--jobs N] [--only NAME ...] [--device cpu|cuda] [--times N] [--out rows.json]

The programs are those in benchmarks/guests. A row is unchanged where both watched runs print the same bytes on both
streams (our own lines, at the end of stderr, aside), end with the same status and leave no case. Programs marked
`# random` draw random numbers inside compiled code, which are eager's under --check-accuracy (so that results can be
compared): there only status and cases count. `# gpu` programs need --device cuda, which runs them and no others.
A row is void, and counted with neither, where the bare program itself says nothing: it ended with another status than
0 (or than N where it is marked `# status N`), was ended by the clock of the benchmark, or compiled no kernel (programs
marked `# no kernel` need not).
CPU seconds and peak memory are those of all processes of a run, compilers included, each with a kernel cache of its
own; the other seconds are by the clock on the wall. --times N measures first call and steady step as benchmarks/watch.py does, N times each. Rows are written as they
come and kept: the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from torchsleuth.core.processes.kernel_caches import hand_probes_to, keep_probes_of

GUESTS = Path(__file__).resolve().parent / "guests"
WAYS: dict[str, list[str]] = {
    "bare": [],
    "run": ["-m", "torchsleuth", "run", "--record-only", "--cases", "../cases"],
    "check": ["-m", "torchsleuth", "run", "--record-only", "--cases", "../cases", "--check-accuracy"],
}
# Of --check-accuracy: twice the program's own peak, and this much.
ROOM_MIB = 1024
# Day, time and process before each line that torch logs.
LOGGED = re.compile(r"^(\[rank\d+\]:)?[VDIWEC]\d{4} [\d:.]+ \d+ ")
# The status that a program means to end with, where that is not 0.
MEANT = re.compile(r"^# status (\d+)$", re.MULTILINE)
# Ranks write to one stream, in no order.
OF_A_RANK = re.compile(r"\[rank\d+\]:")


class Ended(NamedTuple):
    """What one run of a program did."""

    status: int
    out: str
    err: str
    cases: int
    seconds: float
    """Of the CPU, all processes together."""
    wall: float
    """Seconds from its start to its end."""
    peak: float
    """MiB of the largest process."""
    troubled: bool
    in_time: bool
    compiled: bool
    """Whether anything was written into the fresh kernel cache."""


def run(program: Path, way: str, limit: float = 600) -> Ended:
    """Runs a program in an empty folder of its own, with a kernel cache of its own."""
    with tempfile.TemporaryDirectory(prefix="guest-") as name:
        scratch = Path(name)
        work, cache = scratch / "work", scratch / "cache"
        work.mkdir()
        hand_probes_to(cache)
        handed = set(cache.rglob("*"))
        # The place of the folder is the program's own affair, so it is the same in every way of running it.
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache), "PYTHONHASHSEED": "0"}
        began = time.monotonic()
        with open(scratch / "out", "wb") as out, open(scratch / "err", "wb") as err:
            child = subprocess.Popen(
                [sys.executable, *WAYS[way], str(program)],
                cwd=work,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
            status, used, in_time = _wait(child, limit)
        wall = time.monotonic() - began
        compiled = any(path.is_file() for path in set(cache.rglob("*")) - handed)
        keep_probes_of(cache)
        said = (scratch / "err").read_text(errors="replace").replace(str(scratch), "SCRATCH")
        lines = [LOGGED.sub(r"\1", line) for line in said.splitlines(keepends=True)]
        theirs = [line for line in lines if not line.startswith("torchsleuth: ")]
        if all(map(OF_A_RANK.match, theirs)):
            theirs.sort()
        return Ended(
            status,
            (scratch / "out").read_text(errors="replace").replace(str(scratch), "SCRATCH"),
            "".join(theirs),
            len(list(scratch.glob("cases/*/case.json"))),
            used.ru_utime + used.ru_stime,
            wall,
            used.ru_maxrss / 1024,
            "inside torchsleuth" in said,
            in_time,
            compiled,
        )


def _wait(child: subprocess.Popen[bytes], limit: float) -> tuple[int, Any, bool]:
    """Status and resources of a process and all that it waited for, and whether it ended by itself."""
    import threading

    late = threading.Event()

    def end() -> None:
        late.set()
        child.kill()

    ending = threading.Timer(limit, end)
    ending.start()
    _, status, used = os.wait4(child.pid, 0)
    ending.cancel()
    child.returncode = os.waitstatus_to_exitcode(status)
    # A signal reaches us as a shell tells it.
    return child.returncode if child.returncode >= 0 else 128 - child.returncode, used, not late.is_set()


def why_void(source: str, bare: Ended) -> str | None:
    """Why a program's row says nothing about being watched: it does not run as it was meant to without that.

    >>> why_void("import torch", Ended(1, "", "", 0, 1.0, 1.0, 1.0, False, True, False))
    'ends with 1, not 0'
    """
    meant = MEANT.search(source)
    wanted = int(meant[1]) if meant else 0
    if not bare.in_time:
        return "ended by the clock"
    if bare.status != wanted:
        return f"ends with {bare.status}, not {wanted}"
    if not bare.compiled and "# no kernel\n" not in source:
        return "compiles nothing"
    return None


def guest_row(program: Path) -> dict[str, Any]:
    """What changed for one program, and what it cost; `changed` is empty where nothing did or the row is void."""
    source = program.read_text()
    random = "# random" in source
    ended = {way: run(program, way) for way in WAYS}
    bare = ended["bare"]
    changed = []
    for way in ("run", "check"):
        this = ended[way]
        apart = [part for part in ("status", "out", "err") if getattr(this, part) != getattr(bare, part)]
        if random and way == "check":
            apart = [part for part in apart if part == "status"]
        apart += [f"{this.cases} cases"] if this.cases else []
        apart += ["an error of ours"] if this.troubled else []
        changed += [f"{way}: {part}" for part in apart]
    if ended["check"].peak > 2 * bare.peak + ROOM_MIB:
        changed.append("check: memory")
    void = why_void(source, bare)
    return {
        "void": void,
        "changed": [] if void else changed,
        "status": bare.status,
        "seconds": {way: round(each.seconds, 2) for way, each in ended.items()},
        "wall": {way: round(each.wall, 2) for way, each in ended.items()},
        "peak": {way: round(each.peak) for way, each in ended.items()},
        "said": {way: [each.out[-2000:], each.err[-2000:]] for way, each in ended.items()}
        if void or changed
        else {},
    }


def programs(device: str, only: list[str]) -> list[Path]:
    """The programs for a device whose names begin as asked for."""
    found = [p for p in sorted(GUESTS.glob("*.py")) if ("# gpu" in p.read_text()) == (device == "cuda")]
    return [p for p in found if not only or p.stem.startswith(tuple(only))]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1, help="programs at a time")
    parser.add_argument("--only", nargs="+", default=[], help="programs whose names begin so")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--times", type=int, default=0, help="measure first call and steady step this often")
    parser.add_argument("--out", type=Path, help="the rows as JSON; kept, so that the same command goes on")
    options = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    if options.out and options.out.exists():
        rows = json.loads(options.out.read_text())
    chosen = programs(options.device, options.only)
    waiting = [p for p in chosen if p.stem not in rows]
    with ThreadPoolExecutor(options.jobs) as pool:
        for program, row in zip(waiting, pool.map(guest_row, waiting)):
            rows[program.stem] = row
            print(program.stem, outcome(row) or "unchanged", file=sys.stderr, flush=True)
            if options.out:
                options.out.write_text(json.dumps(rows, indent=1))
    print_rows({p.stem: rows[p.stem] for p in chosen})
    if options.times:
        print_times(options.times)


def outcome(row: dict[str, Any]) -> str:
    """What is said of a row, empty where nothing changed: `outcome({"void": "compiles nothing", "changed": []})`."""
    return f"VOID: {row['void']}" if row["void"] else "; ".join(row["changed"])


def print_rows(rows: dict[str, dict[str, Any]]) -> None:
    print(
        "| program | status | changed | CPU s: bare | run | check | s: bare | run | check | peak MiB: bare | run | check |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for name, row in rows.items():
        cells = [row.get(key, {}).get(way, "-") for key in ("seconds", "wall", "peak") for way in WAYS]
        print(f"| {name} | {row['status']} | {outcome(row) or 'nothing'} | {' | '.join(map(str, cells))} |")
    total = [
        sum(row.get(key, {}).get(way, 0) for row in rows.values())
        for key in ("seconds", "wall")
        for way in WAYS
    ]
    void = sum(bool(row["void"]) for row in rows.values())
    untouched = sum(not outcome(row) for row in rows.values())
    cells = [f"{each:.0f}" for each in total]
    said = f"{untouched} of {len(rows) - void} unchanged" + (f", {void} void" if void else "")
    print(f"| **{said}** | | | {' | '.join(cells)} | | | |")


def print_times(repeats: int) -> None:
    """First call and steady step, bare and watched in turn; the best of each, because noise only ever adds."""
    import watch

    ways = ("bare", "torchsleuth run")
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for _ in range(repeats):
        for way in ways:
            found[way].append(json.loads(watch.run(way, watch.HEALTHY, "300")[1].strip().splitlines()[-1]))
    best = {way: {key: min(row[key] for row in rows) for key in rows[0]} for way, rows in found.items()}
    for key, name in (("first", "first call"), ("steady", "steady step"), ("peak", "peak memory")):
        change = 100 * (best["torchsleuth run"][key] / best["bare"][key] - 1)
        print(f"{name}: {best['bare'][key]:.4g} bare, {change:+.1f} % under run")


if __name__ == "__main__":
    main()
