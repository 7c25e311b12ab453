"""What a person gets where capture itself fails: `torchsleuth run` on programs that Dynamo cannot capture.

    python benchmarks/frames.py [--corpus FOLDER] [--only NAME ...] [--budget S] [--out rows.json] [--keep FOLDER]

The programs are those of benchmarks/uncapturable, or of another folder with an `expected.json` as `real.py` reads it.
"fails with": the error that the program ends with. "original": its original.py fails so in a fresh process.
"repro": repro.py does so, three times, and passes without the compiler ("eager"); with --alone both scripts are also
copied to an empty folder and started plainly. "lines" are those of the program inside of repro.py, imports included.
"minify s" is the search. "replay": `torchsleuth replay CASE` comes to the same error. Rows are written as they come and
kept: the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from minify import timed
from real import OPTIONS, Watched, programs, scratch, watched

CORPUS = Path(__file__).resolve().parent / "uncapturable"
PLAIN_SECONDS = 300.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=lambda text: Path(text).resolve(), default=CORPUS)
    parser.add_argument("--only", nargs="+", default=[], help="programs whose names begin so")
    parser.add_argument("--budget", type=float, default=400.0, help="seconds for each, after its end")
    parser.add_argument("--out", type=Path, help="the rows as JSON; kept, so that the same command goes on")
    parser.add_argument("--alone", action="store_true", help="start both scripts plainly, too")
    parser.add_argument("--keep", type=Path, help="keep the cases in this folder")
    options = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    if options.out and options.out.exists():
        rows = json.loads(options.out.read_text())
    for about in programs(options.corpus, healthy=False):
        name = about["program"]
        if name in rows or (options.only and not name.startswith(tuple(options.only))):
            continue
        rows[name] = frame_row(options.corpus / name, about, options.budget, options.keep, options.alone)
        if options.out:
            options.out.write_text(json.dumps(rows, indent=1))
        print(name, json.dumps(rows[name]), file=sys.stderr, flush=True)
    print_rows(rows)


def frame_row(
    program: Path, about: dict[str, Any], budget: float, keep: Path | None, by_hand: bool
) -> dict[str, Any]:
    with scratch(keep, program.stem) as name:
        folder = Path(name)
        more = [*OPTIONS.get(about["kind"], []), "--budget", str(budget)]
        done = watched(program, more, folder, 2 * budget + 600, folder / "cache")
        row = {"fails": ends_with(done)}
        if not done.cases:
            return {**row, "caught": False, "error": "".join(done.said.strip().splitlines()[-1:])[-200:]}
        case = done.cases[0]
        where = folder / "cases" / case["id"]
        triage, small, verified = case["triage"] or {}, case["minified"] or {}, case["verified"] or {}
        ways = [way for way in case["workarounds"] or [] if way["verified"]]
        repro = where / "repro.py"
        return {
            **row,
            "caught": True,
            "kind": case["kind"],
            "summary": case["signature"]["summary"],
            "dynamo": triage.get("component") == "dynamo",
            "line": triage.get("user_line"),
            "original": ": reproduced in " in done.said
            and (not by_hand or alone(where / "original.py", folder / "original")),
            "repro": repro.is_file()
            and verified.get("reproduced") == 3
            and bool(verified.get("same_signature"))
            and (not by_hand or alone(repro, folder / "repro")),
            "eager_passes": verified.get("eager_passes"),
            "lines": small.get("program_lines"),
            "trials": small.get("queries"),
            "seconds": small.get("seconds"),
            "all_seconds": done.seconds,
            "workaround": ways[0]["name"] if ways else None,
            "replay": replays(case["id"], folder),
            "errors": [
                f"{section}: {case[section]['error']}"
                for section in ("triage", "minified", "verified")
                if (case[section] or {}).get("error")
            ]
            + ([case["no_repro"]] if case.get("no_repro") else []),
        }


def ends_with(done: Watched) -> str | None:
    """The error that the program ended with."""
    words = [line for line in done.said.splitlines() if re.match(r"torch\.[\w.]+: |\w+Error: ", line)]
    return words[-1].rpartition(".exc.")[2][:80] if words and done.status else None


def alone(script: Path, folder: Path) -> bool:
    """Whether a script, copied to an empty folder and started plainly, fails as it says."""
    if not script.is_file():
        return False
    folder.mkdir()
    copied = folder / "it.py"
    copied.write_text(script.read_text())
    _, done = timed([sys.executable, copied], folder, dict(os.environ), PLAIN_SECONDS)
    return done is not None and done.stdout.strip().rpartition("\n")[2].startswith("REPRODUCED")


def replays(case: str, folder: Path) -> bool:
    command = [sys.executable, "-m", "torchsleuth", "replay", case, "--cases", "cases"]
    return subprocess.run(command, cwd=folder, capture_output=True, timeout=PLAIN_SECONDS).returncode == 0


def print_rows(rows: dict[str, dict[str, Any]]) -> None:
    columns = (
        "program | fails with | caught | dynamo | line | original | repro | eager | lines | trials | minify s"
    )
    columns += " | workaround | replay"
    print(f"| {columns} |\n|{'---|' * (columns.count('|') + 1)}")
    marks = {True: "yes", False: "**no**", None: "-"}
    for name, row in rows.items():
        if not row["caught"]:
            print(f"| {name} | {row['fails']} | **no**: {row['error']} |" + " |" * 10)
            continue
        cells = [row["fails"], *(marks[row[key]] for key in ("caught", "dynamo")), row["line"]]
        cells += [marks[row["original"]], marks[row["repro"]], marks[row["eager_passes"]]]
        cells += [
            row["lines"],
            row["trials"],
            row["seconds"],
            row["workaround"] or "none",
            marks[row["replay"]],
        ]
        print(f"| {name} | {' | '.join(str(cell) for cell in cells)} |")
    every = list(rows.values())

    def tally(key: str) -> int:
        return sum(bool(row.get(key)) for row in every)

    lines = [row["lines"] for row in every if row.get("lines")] or [0]
    seconds = [row["seconds"] for row in every if row.get("seconds")] or [0]
    cells = [
        tally("fails"),
        tally("caught"),
        tally("dynamo"),
        tally("line"),
        tally("original"),
        tally("repro"),
    ]
    cells += [tally("eager_passes"), f"median {statistics.median(lines):.0f}, most {max(lines)}", ""]
    cells += [f"median {statistics.median(seconds):.0f}", tally("workaround"), tally("replay")]
    print(f"| **of {len(every)}** | {' | '.join(str(cell) for cell in cells)} |")
    for name, row in rows.items():
        for error in row.get("errors", []):
            print(f"\n{name}: {error}")


if __name__ == "__main__":
    main()
