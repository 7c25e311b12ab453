"""What a person gets where capture itself fails: `torchsleuth run` on programs that Dynamo cannot capture.

    python benchmarks/frames.py [--corpus FOLDER] [--only NAME ...] [--budget S] [--out rows.json] [--keep FOLDER]

The programs are those of benchmarks/uncapturable, or of another folder with an `expected.json` as `real.py` reads it.
"fails": the program, started plainly, ends with an error of Dynamo's. "original": its original.py, started plainly in an
empty folder, says REPRODUCED. "repro": repro.py does so, and NOT REPRODUCED without the compiler. "lines" are those of
the program inside of repro.py, imports included. "minify s" is the search, with the start of its processes. "replay":
`torchsleuth replay CASE` comes to the same error. Rows are written as they come and kept: the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from minify import timed
from real import OPTIONS, passes_in_eager, programs, scratch, watched

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
    parser.add_argument("--keep", type=Path, help="keep the cases in this folder")
    options = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    if options.out and options.out.exists():
        rows = json.loads(options.out.read_text())
    for about in programs(options.corpus, healthy=False):
        name = about["program"]
        if name in rows or (options.only and not name.startswith(tuple(options.only))):
            continue
        rows[name] = frame_row(options.corpus / name, about, options.budget, options.keep)
        if options.out:
            options.out.write_text(json.dumps(rows, indent=1))
        print(name, json.dumps(rows[name]), file=sys.stderr, flush=True)
    print_rows(rows)


def frame_row(program: Path, about: dict[str, Any], budget: float, keep: Path | None) -> dict[str, Any]:
    with scratch(keep, program.stem) as name:
        folder = Path(name)
        row: dict[str, Any] = {"fails": ends_with(program, folder, about["kind"])}
        more = [*OPTIONS.get(about["kind"], []), "--budget", str(budget)]
        done = watched(program, more, folder, 2 * budget + 600, folder / "cache")
        (folder / "said.json").write_text(json.dumps(done.cases, indent=1))
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
            "original": alone(where / "original.py", folder / "original"),
            "repro": verified.get("reproduced") == 3 and bool(verified.get("same_signature")),
            "repro_alone": alone(repro, folder / "repro"),
            "eager_passes": repro.is_file() and passes_in_eager(repro, folder),
            "lines": small.get("program_lines"),
            "trials": small.get("queries"),
            "seconds": small.get("seconds"),
            "workaround": ways[0]["name"] if ways else None,
            "replay": replays(case["id"], folder),
            "errors": [
                f"{section}: {case[section]['error']}"
                for section in ("triage", "minified", "verified")
                if (case[section] or {}).get("error")
            ]
            + ([case["no_repro"]] if case.get("no_repro") else []),
        }


def ends_with(program: Path, folder: Path, kind: str) -> str | None:
    """The error that the program, started plainly, ends with; for a wrong result, that it ends without one."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
    _, done = timed([sys.executable, program], folder, environment, PLAIN_SECONDS)
    if done is None or (done.returncode == 0 and kind != "accuracy"):
        return None
    words = [line for line in done.stderr.splitlines() if line.startswith("torch._dynamo.exc.")]
    return words[-1].removeprefix("torch._dynamo.exc.")[:80] if words else f"status {done.returncode}"


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
    columns = "program | fails with | caught | dynamo | line | original | repro | eager | lines | trials | minify s"
    columns += " | workaround | replay"
    print(f"| {columns} |\n|{'---|' * (columns.count('|') + 1)}")
    marks = {True: "yes", False: "**no**", None: "-"}
    for name, row in rows.items():
        if not row["caught"]:
            print(f"| {name} | {row['fails']} | **no**: {row['error']} |" + " |" * 10)
            continue
        verified = row["repro"] and row["repro_alone"]
        cells = [row["fails"], *(marks[row[key]] for key in ("caught", "dynamo")), row["line"]]
        cells += [marks[row["original"]], marks[verified], marks[row["eager_passes"]]]
        cells += [row["lines"], row["trials"], row["seconds"], row["workaround"] or "none", marks[row["replay"]]]
        print(f"| {name} | {' | '.join(str(cell) for cell in cells)} |")
    every = list(rows.values())

    def tally(key: str) -> int:
        return sum(bool(row.get(key)) for row in every)

    verified = sum(bool(row.get("repro") and row.get("repro_alone")) for row in every)
    lines = [row["lines"] for row in every if row.get("lines")] or [0]
    seconds = [row["seconds"] for row in every if row.get("seconds")] or [0]
    cells = [tally("fails"), tally("caught"), tally("dynamo"), tally("line"), tally("original"), verified]
    cells += [tally("eager_passes"), f"median {statistics.median(lines):.0f}, most {max(lines)}", ""]
    cells += [f"median {statistics.median(seconds):.0f}", tally("workaround"), tally("replay")]
    print(f"| **of {len(every)}** | {' | '.join(str(cell) for cell in cells)} |")
    for name, row in rows.items():
        for error in row.get("errors", []):
            print(f"\n{name}: {error}")


if __name__ == "__main__":
    main()
