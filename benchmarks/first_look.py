"""How long after a failure a person reads the first look, and whether it points to the right part and line.

    python benchmarks/first_look.py --corpus FOLDER --only NAME ... [--out results/first_look.json]

FOLDER is as `real.py` has it. Each program is run as its author would, until its first look is on stderr; then
torchsleuth is asked to end. The failure is when the watched process wrote it down (of a crash or hang, the program's
end), the look when its last line was read. "starts" are the processes that were started in between. The part is right
where the look names the expected one; "open" where it says that it does not know yet.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from real import OPTIONS

NAMES = {
    "aot_autograd": "AOTAutograd",
    "dynamo": "Dynamo",
    "inductor": "Inductor",
    "decompositions": "decompositions",
}
LAST = "keeps what is known"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: dict[str, Any] = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    for about in json.loads((options.corpus / "expected.json").read_text()):
        name = about["program"]
        if name in rows or not name.startswith(tuple(options.only) or ""):
            continue
        rows[name] = {**about, **look_at(options.corpus.resolve() / name, about)}
        print(name, json.dumps(rows[name]), file=sys.stderr, flush=True)
        if options.out:
            options.out.write_text(json.dumps(rows, indent=1))
    print_rows(rows)


def look_at(program: Path, about: dict[str, Any]) -> dict[str, Any]:
    """One program, up to its first look."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/cache",
            "TORCHSLEUTH_CASES": f"{folder}/cases",
        }
        command = [sys.executable, "-m", "torchsleuth", "run", *OPTIONS.get(about["kind"], []), str(program)]
        ours = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )
        seen: dict[str, float] = {}
        threading.Thread(target=failure_seen, args=(Path(folder), ours, seen), daemon=True).start()
        look: list[str] = []
        for line in ours.stderr or ():
            if "first look, " in line or look:
                look.append(line.removeprefix("torchsleuth: ").rstrip())
            if look and LAST in line:
                break
        read = time.time()
        starts = len(children_of(ours.pid))
        ours.terminate()
        ours.communicate()
    text = "\n".join(look)
    failed = seen.get("failure", seen.get("end", read))
    part = next((line for line in look if line.startswith(("likely part", "whose bug"))), "")
    return {
        "seconds": round(read - failed, 1),
        "load": round(os.getloadavg()[0], 1),
        "starts": starts,
        "part": part.removeprefix("likely part").strip(),
        "line": next((line[15:] for line in look if line.startswith("your line")), ""),
        "found": bool(text),
    }


def failure_seen(folder: Path, ours: subprocess.Popen[str], seen: dict[str, float]) -> None:
    """Notes when the first failure was written down, and when the program had ended."""
    program = None
    while ours.poll() is None and "end" not in seen:
        for path in folder.glob("cases/*/*/*/failure*"):
            with_time = path.stat().st_mtime if path.exists() else time.time()
            seen.setdefault("failure", with_time)
        children = children_of(ours.pid)
        program = program or (children[0] if children else None)
        if program is not None and program not in children:
            seen["end"] = time.time()
        time.sleep(0.05)


def children_of(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def print_rows(rows: dict[str, Any]) -> None:
    """The table, and under it what all rows say together."""
    print("| program | kind | seconds | starts | likely part | your line | load |")
    print("|---|---|---|---|---|---|---|")
    for name, row in rows.items():
        says = (
            "right"
            if NAMES[row["first_failing"]] in row["part"]
            else "open"
            if "known yet" in row["part"] or "found out" in row["part"]
            else "other"
        )
        line = row["line"] if len(row["line"]) < 60 else row["line"][:57] + "..."
        print(
            f"| {name} | {row['kind']} | {row['seconds']} | {row['starts']} | {says} | {line} | {row['load']} |"
        )
    seconds = [row["seconds"] for row in rows.values() if row["found"]]
    median, most = statistics.median(seconds), max(seconds)
    print(f"| {len(seconds)} of {len(rows)} | | median {median:.1f}, worst {most:.1f} | | | | |")


if __name__ == "__main__":
    main()
