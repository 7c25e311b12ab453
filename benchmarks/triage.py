"""Who is at fault, and how fast we say so: our triage beside PyTorch's bisector, on programs with known culprits.

    python benchmarks/triage.py --corpus FOLDER [--cases 01,05] [--peer] [--workarounds] --out rows.json

Each program is recorded once (`run --record-only`), then `torchsleuth triage` is timed from process start to process
end, without any help from the minifier. With --peer, PyTorch's `compiler_bisector run` is given the same program: it
repeats the whole program, and needs one that says by its exit status whether it failed. Both get a cache folder of
their own; what the bisector leaves of its state in it is counted. Rows are kept, so the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--cases", help="numbers, e.g. 01,05; default all")
    parser.add_argument("--peer", action="store_true", help="also time PyTorch's bisector")
    parser.add_argument("--peer-limit", type=float, default=600.0)
    parser.add_argument("--workarounds", action="store_true", help="also look for a workaround")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("/tmp/torchsleuth-bench-triage"))
    options = parser.parse_args()
    rows: dict[str, dict[str, Any]] = json.loads(options.out.read_text()) if options.out.exists() else {}
    wanted = options.cases.split(",") if options.cases else None
    for about in sorted(options.corpus.glob("cases/case_*.json")):
        facts = json.loads(about.read_text())
        if wanted and facts["id"].split("_")[1] not in wanted:
            continue
        row = rows.setdefault(facts["id"], {})
        try:
            measure(options, facts, row)
        finally:
            options.out.write_text(json.dumps(rows, indent=1))
    table(rows)


def measure(options: argparse.Namespace, facts: dict[str, Any], row: dict[str, Any]) -> None:
    """Fills in what the row still lacks."""
    program = options.corpus / "cases" / f"{facts['id']}.py"
    work = options.work / facts["id"]
    work.mkdir(parents=True, exist_ok=True)
    env = environment(options, facts, work / "cache")
    if "component" not in row:
        extra = {"accuracy": ["--check-accuracy"], "hang": ["--timeout", "20"]}.get(facts["kind"], [])
        timed(
            [*sleuth("run"), "--record-only", *extra, "--cases", str(work / "cases"), str(program)],
            env,
            work,
            600,
        )
        seconds, _ = timed([*sleuth("triage"), "last", "--cases", str(work / "cases")], env, work, 600)
        row.update(ours_row(facts, work / "cases", seconds))
    if options.workarounds and "workaround" not in row:
        seconds, _ = timed([*sleuth("workaround"), "last", "--cases", str(work / "cases")], env, work, 600)
        found = last_case(work / "cases").get("workarounds") or []
        verified = [w for w in found if w["verified"]]
        row.update(workaround=verified[0]["name"] if verified else None, workaround_seconds=round(seconds, 1))
    if options.peer and "peer_seconds" not in row:
        cache = work / "peer-cache"
        env = environment(options, facts, cache)
        command = [
            sys.executable,
            "-m",
            "torch._inductor.compiler_bisector",
            "run",
            sys.executable,
            str(program),
        ]
        seconds, output = timed(command, env, work, options.peer_limit)
        said = [line for line in output.splitlines() if "BisectionResult" in line or "backend=" in line]
        row.update(
            peer_seconds=round(seconds, 1),
            peer_said=said[-1].strip()[-120:] if said else None,
            peer_left=sum(1 for path in cache.rglob("*bisect*")),
        )


def sleuth(verb: str) -> list[str]:
    return [sys.executable, "-m", "torchsleuth", verb]


def environment(options: argparse.Namespace, facts: dict[str, Any], cache: Path) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("TORCHSLEUTH_", "TORCHINDUCTOR_"))}
    hook = str(options.corpus.absolute() / "hook")
    return {**env, "FAULT": facts["fault"], "PYTHONPATH": hook, "TORCHINDUCTOR_CACHE_DIR": str(cache)}


def timed(command: list[str], env: dict[str, str], work: Path, limit: float) -> tuple[float, str]:
    """Wall seconds and output of a command, ended with all it started after `limit` seconds."""
    started = time.monotonic()
    log = work / "output.txt"
    with log.open("w") as out:
        child = subprocess.Popen(
            command, env=env, cwd=work, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            child.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    return time.monotonic() - started, log.read_text(errors="replace")


def last_case(folder: Path) -> dict[str, Any]:
    found = [json.loads(path.read_text()) for path in folder.glob("*/case.json")]
    return max(found, key=lambda case: case["created"])


def ours_row(facts: dict[str, Any], cases: Path, seconds: float) -> dict[str, Any]:
    found = last_case(cases)["triage"] or {}
    wanted = "backend" if "backend" in facts["tags"] else "inductor"
    ops = found.get("ops") or []
    right_op = any(culprit.split(".")[-1].lower() in op.lower() for culprit in facts["culprit"] for op in ops)
    return {
        "seconds": round(seconds, 1),
        "component": found.get("component"),
        "right_component": found.get("component") == wanted,
        "part": found.get("part"),
        "ops": ops,
        "right_op": right_op,
        "line": f"{found.get('user_line')}: {found.get('code') or ''}"[:90],
        "trials": found.get("trials"),
    }


def table(rows: dict[str, dict[str, Any]]) -> None:
    print(
        "| case | component | part | operator | line of the program | trials | seconds | workaround | bisector |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name, row in rows.items():
        peer = f"{row['peer_seconds']} s: {row['peer_said']}" if "peer_seconds" in row else "-"
        print(
            f"| {name} | {row['component']}{'' if row['right_component'] else ' (wrong)'} | {row['part']} | "
            f"{', '.join(row['ops'][:3])}{'' if row['right_op'] else ' (wrong)'} | {row['line']} | {row['trials']} | "
            f"{row['seconds']} | {row.get('workaround', '-')} | {peer} |"
        )
    done = list(rows.values())
    ours = [row["seconds"] for row in done]
    print(f"\nright component {sum(row['right_component'] for row in done)} of {len(done)}, ", end="")
    print(f"right operator {sum(row['right_op'] for row in done)}, median {statistics.median(ours):.1f} s")
    both = [(row["seconds"], row["peer_seconds"]) for row in done if row.get("peer_said")]
    if both:
        ratio = statistics.geometric_mean(theirs / mine for mine, theirs in both)
        print(f"on {len(both)} cases the bisector answers as well: it takes {ratio:.1f} times as long")
    tried = [row for row in done if "workaround" in row]
    if tried:
        print(
            f"a verified workaround for {sum(row['workaround'] is not None for row in tried)} of {len(tried)}"
        )


if __name__ == "__main__":
    main()
