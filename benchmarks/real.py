"""What a person gets for a real bug: `torchsleuth run` on programs that fail by themselves, nothing planted.

    python benchmarks/real.py --corpus FOLDER [--only NAME ...] [--budget S] [--peer] [--out rows.json]
    python benchmarks/real.py --healthy [--corpus FOLDER] [--only NAME ...] [--out rows.json]

FOLDER holds programs and an `expected.json`: a list of {"program", "kind", "first_failing"}, the last one the first
stage that goes wrong (dynamo, aot_autograd, decompositions, inductor). Each program is run as its author would
(`--check-accuracy` for wrong results, `--timeout 40` for hangs) with a cache folder of its own, and its case is read.
A decomposition that `aot_eager` already applies counts as right for `aot_autograd`. "eager" is TORCH_COMPILE_DISABLE=1
on the written script: one that fails without the compiler shows another bug. Seconds count from the program's end.
--peer gives the same program to PyTorch's minifier, where it has one for such a failure.
--healthy runs programs without a bug (by default the twins in benchmarks/healthy), plainly and with --check-accuracy;
every case is a false alarm. Rows are written as they come and kept: the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from minify import peer_words, theirs, timed

OPTIONS = {"accuracy": ["--check-accuracy"], "hang": ["--timeout", "40"]}
RIGHT = {"aot_autograd": ("aot_autograd", "decompositions")}
# A compile that fails before there is a graph is a failure of capture, to us.
SAME_KIND = {"compile_error": ("compile_error", "capture_error")}
# PyTorch's manual: after "dynamo" or "aot", level 4 for wrong results. It has nothing for capture, crashes and hangs.
PEER_AFTER = {"aot_autograd": "dynamo", "decompositions": "dynamo", "inductor": "aot"}
PEER_LEVEL = {"compile_error": 2, "runtime_error": 2, "accuracy": 4}
TWINS = Path(__file__).resolve().parent / "healthy"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=lambda text: Path(text).resolve())
    parser.add_argument("--only", nargs="+", default=[], help="programs whose names begin so")
    parser.add_argument(
        "--budget", type=float, default=600.0, help="seconds for each, after the program's end"
    )
    parser.add_argument("--peer", action="store_true", help="PyTorch's minifier as well")
    parser.add_argument("--peer-limit", type=float, default=600.0)
    parser.add_argument("--healthy", action="store_true", help="programs without a bug: no case is expected")
    parser.add_argument("--out", type=Path, help="the rows as JSON; kept, so that the same command goes on")
    parser.add_argument("--keep", type=Path, help="keep the cases in this folder")
    options = parser.parse_args()
    if options.corpus is None and not options.healthy:
        parser.error("say where the programs are: --corpus FOLDER")
    corpus = options.corpus or TWINS
    rows: dict[str, dict[str, Any]] = {}
    if options.out and options.out.exists():
        rows = json.loads(options.out.read_text())
    shared_cache = tempfile.TemporaryDirectory(prefix="real-cache-")
    for about in programs(corpus, options.healthy):
        if options.only and not about["program"].startswith(tuple(options.only)):
            continue
        row = rows.setdefault(about["program"], {"kind": about["kind"], "expected": about["first_failing"]})
        if options.healthy and "alarms" not in row:
            row.update(healthy_row(corpus / about["program"], Path(shared_cache.name), options.keep))
        elif not options.healthy and "caught" not in row:
            row.update(bug_row(corpus / about["program"], about, options.budget, options.keep))
        if options.peer and not options.healthy and "peer" not in row:
            row["peer"] = peer_row(corpus / about["program"], about, row, options.peer_limit)
        if options.out:
            options.out.write_text(json.dumps(rows, indent=1))
        print(about["program"], json.dumps(row), file=sys.stderr, flush=True)
    (print_healthy if options.healthy else print_bugs)(rows)


def programs(corpus: Path, healthy: bool) -> list[dict[str, Any]]:
    if healthy:
        found = sorted(path.name for path in corpus.glob("*.py"))
        return [{"program": name, "kind": "healthy", "first_failing": None} for name in found]
    return list(json.loads((corpus / "expected.json").read_text()))


class Watched(NamedTuple):
    """What came of a `torchsleuth run --json`."""

    status: int
    cases: list[dict[str, Any]]
    seconds: float | None
    """From the program's own end; None where no case came of it."""
    said: str


def watched(program: Path, options: list[str], folder: Path, limit: float, cache: Path) -> Watched:
    """Runs the program under watch in that folder, and ends all of it after `limit` seconds."""
    command = [sys.executable, "-m", "torchsleuth", "run", "--json", "--cases", "cases", *options, program]
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache)}
    started, ended = time.monotonic(), None
    with open(folder / "stdout", "w") as out, open(folder / "stderr", "w") as err:
        child = subprocess.Popen(
            list(map(str, command)),
            cwd=folder,
            env=environment,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        while child.poll() is None:
            time.sleep(0.2)
            said = (folder / "stderr").read_text(errors="replace")
            if ended is None and "torchsleuth: case " in said:
                ended = time.monotonic()
            if time.monotonic() - started > limit:
                os.killpg(child.pid, signal.SIGKILL)
    seconds = None if ended is None else round(time.monotonic() - ended, 1)
    text = (folder / "stdout").read_text()
    cases = json.loads(text)["cases"] if text.strip() else []
    return Watched(child.returncode, cases, seconds, (folder / "stderr").read_text(errors="replace"))


def bug_row(program: Path, about: dict[str, Any], budget: float, keep: Path | None) -> dict[str, Any]:
    """What `run` made of a program with a bug."""
    with scratch(keep, program.stem) as name:
        folder = Path(name)
        options = [*OPTIONS.get(about["kind"], []), "--budget", str(budget)]
        done = watched(program, options, folder, 2 * budget + 600, folder / "cache")
        kinds = SAME_KIND.get(about["kind"], (about["kind"],))
        fitting = [case for case in done.cases if case["kind"] in kinds]
        if not done.cases:
            why = done.said.strip().splitlines()[-1:]
            return {"caught": False, "cases": 0, "error": why[0][-200:] if why else "nothing was said"}
        case = (fitting or done.cases)[0]
        triage, small = case["triage"] or {}, case["minified"] or {}
        expected = about["first_failing"]
        ways = [way for way in case["workarounds"] or [] if way["verified"]]
        script = folder / "cases" / case["id"] / "repro.py"
        verified = case["verified"] or {}
        return {
            "caught": True,
            "cases": len(done.cases),
            "found_kind": case["kind"],
            "summary": case["signature"]["summary"],
            "component": triage.get("component"),
            "right_component": triage.get("component") in RIGHT.get(expected, (expected,)),
            "part": triage.get("part"),
            "line": triage.get("user_line"),
            "calls_before": (case["graph"] or {}).get("calls"),
            "calls": small.get("calls"),
            "lines": len(script.read_text().splitlines()) if script.is_file() else None,
            "verified": f"{verified.get('reproduced', 0)} of {verified.get('times', 0)}",
            "is_verified": bool(verified.get("reproduced")) and script.is_file(),
            "eager_passes": passes_in_eager(script, folder) if script.is_file() else None,
            "workaround": ways[0]["name"] if ways else None,
            "seconds": done.seconds,
            "errors": [
                f"{section}: {case[section]['error']}"
                for section in ("triage", "minified", "verified")
                if (case[section] or {}).get("error")
            ]
            + ([case["error"]] if case.get("error") else []),
        }


def scratch(keep: Path | None, name: str) -> Any:
    """A folder that is gone afterwards, or one that stays."""
    if keep is None:
        return tempfile.TemporaryDirectory(prefix="real-bench-")
    keep.mkdir(parents=True, exist_ok=True)
    return contextlib.nullcontext(tempfile.mkdtemp(prefix=f"{name}-", dir=keep))


def passes_in_eager(script: Path, folder: Path) -> bool:
    """Whether the script finds nothing wrong where nothing is compiled."""
    environment = {**os.environ, "TORCH_COMPILE_DISABLE": "1"}
    folder = folder / "eager"
    folder.mkdir()
    _, done = timed([sys.executable, script.absolute()], folder, environment, 180)
    if done is None or done.returncode != 0 or not done.stdout.strip():
        return False
    return done.stdout.strip().splitlines()[-1].startswith("NOT REPRODUCED")


def peer_row(
    program: Path, about: dict[str, Any], row: dict[str, Any], limit: float
) -> dict[str, Any] | None:
    """PyTorch's minifier on the same program; None where it has none for such a failure."""
    after, level = PEER_AFTER.get(about["first_failing"]), PEER_LEVEL.get(about["kind"])
    if after is None or level is None:
        return None
    told = {
        "id": program.stem,
        "kind": about["kind"],
        "pytorch_modes": [[after, level]],
        "mark": row.get("summary", "").partition(":")[0],
    }
    with tempfile.TemporaryDirectory(prefix="real-peer-") as name:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": f"{name}/cache"}
        return theirs(program, told, Path(name), environment, limit, isolate=False)


def healthy_row(program: Path, cache: Path, keep: Path | None) -> dict[str, Any]:
    """The cases that came of a program without a bug, and how it ended."""
    alarms, statuses = [], []
    for options in ([], ["--check-accuracy"]):
        with scratch(keep, program.stem) as name:
            done = watched(program, [*options, "--record-only"], Path(name), 900, cache)
        statuses.append(done.status)
        alarms += [
            f"{' '.join(options)} {case['kind']}: {case['signature']['summary']}" for case in done.cases
        ]
        alarms += ["our own error"] * ("inside torchsleuth" in done.said)
    return {"alarms": alarms, "statuses": statuses}


def print_bugs(rows: dict[str, dict[str, Any]]) -> None:
    columns = "program | kind | component | line | calls | lines | verified | eager | workaround | s"
    peer = any("peer" in row for row in rows.values())
    columns += " | PyTorch's minifier" if peer else ""
    print(f"| {columns} |\n|{'---|' * (columns.count('|') + 1)}")
    done = {name: row for name, row in rows.items() if "caught" in row}
    for name, row in done.items():
        theirs_said = "does not apply" if row.get("peer", {}) is None else peer_words(row.get("peer"))
        last = f" {theirs_said} |" if peer else ""
        if not row["caught"]:
            print(f"| {name} | {row['kind']} | not caught: {row['error']} | | | | | | | |{last}")
            continue
        fits = row["found_kind"] in SAME_KIND.get(row["kind"], (row["kind"],))
        kind = row["kind"] if fits else f"{row['kind']}, seen as {row['found_kind']}"
        component = ", ".join(filter(None, (row["component"], row["part"]))) or "not found"
        component += "" if row["right_component"] else f" (wrong: {row['expected']})"
        eager = {True: "passes", False: "**fails**", None: "-"}[row["eager_passes"]]
        cells = (kind, component, row["line"], f"{row['calls_before']} → {row['calls']}", row["lines"])
        cells += (row["verified"], eager, row["workaround"] or "none", row["seconds"])
        print(f"| {name} | {' | '.join(str(cell) for cell in cells)} |{last}")
    every, lengths = list(done.values()), [row["lines"] for row in done.values() if row.get("lines")]
    tally = " | ".join(
        (
            f"caught {sum(row['caught'] for row in every)}/{len(every)}",
            f"right {sum(row.get('right_component', False) for row in every)}",
            f"{sum(bool(row.get('line')) for row in every)}",
            "",
            f"median {statistics.median(lengths):.0f}, most {max(lengths)}" if lengths else "-",
            f"{sum(row.get('is_verified', False) for row in every)}",
            f"{sum(row.get('eager_passes') is True for row in every)}",
            f"{sum(row.get('workaround') is not None for row in every)}",
            f"most {max((row.get('seconds') or 0 for row in every), default=0)}",
        )
    )
    made = sum("error" not in row["peer"] for row in every if row.get("peer"))
    print(f"| **all** | {tally} |" + (f" {made} scripts that fail so |" if peer else ""))
    for name, row in done.items():
        for error in row.get("errors", []):
            print(f"\n{name}: {error}")


def print_healthy(rows: dict[str, dict[str, Any]]) -> None:
    print("| program | run | run --check-accuracy | false alarms |\n|---|---|---|---|")
    for name, row in rows.items():
        plain, checked = row["statuses"]
        print(f"| {name} | {plain} | {checked} | {'; '.join(row['alarms']) or 'none'} |")
    print(f"\n{sum(bool(row['alarms']) for row in rows.values())} of {len(rows)} programs with a false alarm")


if __name__ == "__main__":
    main()
