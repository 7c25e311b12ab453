"""What a person gets for a failing program on a GPU: `torchsleuth run` on the programs in benchmarks/gpu_programs.

    python benchmarks/gpu.py [--jobs N] [--only NAME ...] [--bare] [--budget S] [--keep FOLDER] [--out rows.json]

Kernels of the program's own as tutorials teach them, CUDA graphs, quantised weights, templates: each has one fault,
which its head names: `# fault OP:act` is planted in every process (tests/kit/hook/faultkit.py), a relu is made wrong by
torch's own setting, and the rest is the program's. `# check` programs run with `--check-accuracy`. A row is right where
the case names the expected component and word (`# right`). "first" are the seconds from the failure until the first
look was read, "seconds" those from the program's end to ours. --bare runs the program by itself first, in an empty
cache as well. Rows are written as they come and kept: the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from first_look import LAST, failure_seen

PROGRAMS = Path(__file__).resolve().parent / "gpu_programs"
HOOK = Path(__file__).resolve().parents[1] / "tests" / "kit" / "hook"
LIMIT = 500.0
HEAD = re.compile(r"^# (check|fault|right)\b ?(.*)$", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--only", nargs="+", default=[], help="programs whose names begin so, in this order")
    parser.add_argument("--bare", action="store_true", help="also the program by itself")
    parser.add_argument("--budget", type=float, default=120.0)
    parser.add_argument("--keep", type=Path, help="keep output and cases in this folder")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: dict[str, Any] = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}

    def measure(program: Path) -> None:
        rows[program.stem] = row_of(program, options)
        print(program.stem, json.dumps(rows[program.stem]), file=sys.stderr, flush=True)
        if options.out:
            options.out.write_text(json.dumps(dict(sorted(rows.items())), indent=1))

    left = [
        program
        for program in sorted(PROGRAMS.glob("*.py"))
        if program.stem not in rows and program.stem.startswith(tuple(options.only) or "")
    ]
    order = [*options.only, ""]
    left.sort(
        key=lambda program: next(place for place, name in enumerate(order) if program.stem.startswith(name))
    )
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(measure, left))
    print_rows(dict(sorted(rows.items())))


def row_of(program: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One program, bare where asked for, then under watch to our end."""
    head = dict(HEAD.findall(program.read_text()))
    kept = options.keep and options.keep / program.stem
    if kept:
        kept.mkdir(parents=True, exist_ok=True)
    with nullcontext(str(kept)) if kept else tempfile.TemporaryDirectory(prefix="gpu-") as name:
        folder = Path(name)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HOOK), os.environ.get("PYTHONPATH", "")]),
            "SLEUTH_TEST_FAULT": head.get("fault", ""),
        }
        bare = bare_seconds(program, folder, environment) if options.bare else None
        environment |= {
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/cache",
            "TRITON_CACHE_DIR": f"{folder}/cache/triton",
            "TORCHSLEUTH_CASES": f"{folder}/cases",
        }
        command = [sys.executable, "-m", "torchsleuth", "run", "--budget", str(options.budget)]
        command += ["--check-accuracy"] * ("check" in head)
        started = time.time()
        ours = subprocess.Popen(
            [*command, str(program)],
            env=environment,
            cwd=folder,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )
        seen: dict[str, float] = {}
        threading.Thread(target=failure_seen, args=(folder, ours, seen), daemon=True).start()
        ending = threading.Timer(LIMIT, ours.terminate)
        ending.start()
        first = None
        with open(folder / "stderr", "w") as log:
            for line in ours.stderr or ():
                log.write(f"{time.time() - started:6.1f} {line}")
                if LAST in line and first is None:
                    first = time.time()
        ours.wait()
        ending.cancel()
        found = [json.loads(path.read_text()) for path in sorted(folder.glob("cases/*/case.json"))]
        ended = time.time()
        failed = seen.get("failure", seen.get("end", ended))
        return {
            "expected": head["right"],
            "status": ours.returncode,
            "cases": len(found),
            **(what_was_found(found[0], head["right"], folder) if found else {"right": False}),
            "first": None if first is None else round(first - min(failed, first), 1),
            "seconds": round(ended - seen.get("end", ended), 1),
            "bare": bare,
        }


def bare_seconds(program: Path, folder: Path, environment: dict[str, str]) -> float:
    """How long the program takes without us."""
    own = {
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/bare-cache",
        "TRITON_CACHE_DIR": f"{folder}/bare-cache/triton",
    }
    started = time.monotonic()
    command = [sys.executable, str(program)]
    subprocess.run(command, cwd=folder, env=environment | own, capture_output=True, timeout=LIMIT)
    return round(time.monotonic() - started, 1)


def what_was_found(case: dict[str, Any], expected: str, folder: Path) -> dict[str, Any]:
    """Of a case, what a row shows."""
    component, _, word = expected.partition(" ")
    triage, small, verified = (case[section] or {} for section in ("triage", "minified", "verified"))
    said = [triage.get(key) for key in ("part", "detail", "code", "user_line")] + list(
        triage.get("ops") or ()
    )
    ways = [way for way in case["workarounds"] or () if way["verified"]]
    script = folder / "cases" / case["id"] / "repro.py"
    return {
        "kind": case["kind"],
        "component": triage.get("component"),
        "part": triage.get("part"),
        "ops": triage.get("ops"),
        "line": triage.get("code"),
        "right": triage.get("component") == component and word in " ".join(map(str, said)),
        "calls_before": (case["graph"] or {}).get("calls"),
        "calls": small.get("calls"),
        "lines": len(script.read_text().splitlines()) if script.is_file() else None,
        "verified": f"{verified.get('reproduced', 0)} of {verified.get('times', 0)}",
        "workaround": ways[0]["name"] if ways else None,
        "on_program": bool(ways and ways[0].get("program")),
    }


def print_rows(rows: dict[str, Any]) -> None:
    """The table, and under it what all rows say together."""
    columns = (
        "program | status | component | calls | lines | verified | workaround | first, s | s | bare run, s"
    )
    print(f"| {columns} |\n|{'---|' * (columns.count('|') + 1)}")
    for name, row in rows.items():
        component = ", ".join(filter(None, (row.get("component"), row.get("part")))) or "not found"
        component += "" if row["right"] else f" (wrong: {row['expected']})"
        way = row.get("workaround") or "none"
        cells = (row["status"], component, f"{row.get('calls_before')} → {row.get('calls')}")
        cells += (
            row.get("lines"),
            row.get("verified"),
            f"{way}{', on the program' * row.get('on_program', 0)}",
        )
        cells += (row["first"], row["seconds"], row["bare"])
        print(f"| {name} | {' | '.join('-' if cell is None else str(cell) for cell in cells)} |")
    tried = [row for row in rows.values() if row.get("workaround")]
    verified = [row for row in rows.values() if row.get("verified") == "3 of 3"]
    firsts = [row["first"] for row in rows.values() if row["first"] is not None]
    print(
        f"| **{len(rows)}** | | right {sum(row['right'] for row in rows.values())} | | | {len(verified)} 3 of 3 "
        f"| {len(tried)}, {sum(row['on_program'] for row in tried)} on the program | most {max(firsts, default=0)} "
        f"| most {max((row['seconds'] for row in rows.values()), default=0)} | |"
    )


if __name__ == "__main__":
    main()
