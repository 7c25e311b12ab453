"""How fast and how small: torchsleuth's minifier beside PyTorch's own, on programs with known culprits.

    python benchmarks/minify.py corpus --corpus FOLDER [--cases 01,05] [--pytorch] [--workers 2] --out result.json
    python benchmarks/minify.py overhead [--nodes 300,1000,3000,10000]

`corpus` records each program under `torchsleuth run --record-only`, minifies the case, and with `--pytorch` lets
PyTorch's minifier have the same program (isolated, as documented; `--no-isolate` beside it). `overhead` measures the
search without any compiler: a fake oracle answers at once, so what is left is our own time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# What one call costs to compile with cached kernels, measured (notes/minify-search.md): the yardstick.
SECONDS_PER_CALL = 0.017


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    corpus = verbs.add_parser("corpus")
    corpus.add_argument("--corpus", type=Path, required=True)
    corpus.add_argument("--cases", default="")
    corpus.add_argument("--pytorch", action="store_true")
    corpus.add_argument("--no-isolate", action="store_true")
    corpus.add_argument("--workers", type=int, default=2)
    corpus.add_argument("--timeout", type=float, default=1800.0)
    corpus.add_argument("--out", type=Path, default=Path("minify.json"))
    overhead = verbs.add_parser("overhead")
    overhead.add_argument("--nodes", default="300,1000,3000,10000")
    one = verbs.add_parser("one")  # a process of its own per case, with the case's fault in it
    one.add_argument("folder", type=Path)
    one.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    {"corpus": run_corpus, "overhead": run_overhead, "one": run_one}[options.verb](options)


def run_corpus(options: argparse.Namespace) -> None:
    wanted = [w for w in options.cases.split(",") if w]
    rows = []
    for facts in sorted((options.corpus / "cases").glob("case_*.json")):
        if wanted and not any(f"case_{w}_" in facts.name for w in wanted):
            continue
        row = measure(facts, options)
        rows.append(row)
        print(json.dumps(row), flush=True)
        options.out.write_text(json.dumps(rows, indent=1))


def measure(facts: Path, options: argparse.Namespace) -> dict[str, Any]:
    about = json.loads(facts.read_text())
    row: dict[str, Any] = {"case": about["id"], "kind": about["kind"], "known_calls": about["min_nodes"]}
    with tempfile.TemporaryDirectory(prefix="minify-bench-") as scratch:
        folder = Path(scratch)
        env = {**os.environ, "PYTHONPATH": str(options.corpus / "hook"), "FAULT": about["fault"]}
        env["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "cache")
        row["torchsleuth"] = ours(facts.with_suffix(".py"), about, folder, env, options)
        if options.pytorch:
            row["pytorch"] = theirs(
                facts.with_suffix(".py"), about, folder / "pt", env, options, isolate=True
            )
        if options.no_isolate:
            row["pytorch_no_isolate"] = theirs(
                facts.with_suffix(".py"), about, folder / "pn", env, options, isolate=False
            )
    return row


def ours(
    program: Path, about: dict[str, Any], folder: Path, env: dict[str, str], options: argparse.Namespace
) -> dict[str, Any]:
    more = {"accuracy": ["--check-accuracy"], "hang": ["--timeout", "20"]}.get(about["kind"], [])
    cases = folder / "cases"
    command = [
        sys.executable,
        "-m",
        "torchsleuth",
        "run",
        "--record-only",
        *more,
        "--cases",
        str(cases),
        str(program),
    ]
    subprocess.run(command, env=env, cwd=folder, capture_output=True, timeout=options.timeout)
    folders = [p.parent for p in cases.glob("*/case.json")]
    fitting = [
        p for p in folders if json.loads((p / "case.json").read_text())["direction"] == about["direction"]
    ]
    if not folders:
        return {"error": "no case was recorded"}
    target = (fitting or folders)[0]
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, __file__, "one", str(target), "--workers", str(options.workers)],
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=options.timeout,
    )
    try:
        result = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return {"error": done.stderr.strip()[-400:]}
    return {**result, "wall_seconds": round(time.monotonic() - started, 2)}


def run_one(options: argparse.Namespace) -> None:
    from torchsleuth.cases.folder import open_case
    from torchsleuth.minify.case import minify_case
    from torchsleuth.minify.states import warm_up
    from torchsleuth.workers.pool import Workers

    started = time.monotonic()
    folder = open_case(options.folder.parent, str(options.folder))
    with Workers(options.workers) as workers:
        warm_up()
        workers.wait_ready()
        ready = time.monotonic() - started
        result = minify_case(folder, workers=workers)
    minified = result.folder.case.minified
    print(
        json.dumps(
            {
                "calls": result.reduction.calls,
                "queries": result.reduction.queries,
                "verified": result.verified,
                "form": result.form,
                "lines": minified.lines,
                "input_bytes": minified.input_bytes,
                "start_up_seconds": round(ready, 2),
                "search_seconds": result.reduction.seconds,
                "trial_seconds": result.trial_seconds,
                "minify_seconds": result.seconds,
            }
        )
    )


def theirs(
    program: Path,
    about: dict[str, Any],
    folder: Path,
    env: dict[str, str],
    options: argparse.Namespace,
    *,
    isolate: bool,
) -> dict[str, Any]:
    """PyTorch's minifier as its manual describes it: run the program, then the launcher it leaves behind."""
    after, level = (about["pytorch_modes"] or [["aot", 2]])[0]
    folder.mkdir()
    env = {**env, "TORCHDYNAMO_REPRO_AFTER": str(after), "TORCHDYNAMO_REPRO_LEVEL": str(level)}
    env["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "cache")
    env["TORCH_COMPILE_DEBUG_DIR"] = str(folder)
    started = time.monotonic()
    try:
        subprocess.run(
            [sys.executable, str(program)], env=env, cwd=folder, capture_output=True, timeout=options.timeout
        )
        launcher = next(folder.rglob("minifier_launcher.py"), None)
        if launcher is None:
            return {"error": "no launcher was written", "wall_seconds": round(time.monotonic() - started, 2)}
        plain = {k: v for k, v in env.items() if not k.startswith("TORCHDYNAMO_REPRO")}
        arguments = [] if isolate else ["minify", "--no-isolate"]
        subprocess.run(
            [sys.executable, str(launcher), *arguments],
            env=plain,
            cwd=folder,
            capture_output=True,
            timeout=options.timeout,
        )
    except subprocess.TimeoutExpired:
        return {"error": "time-out", "wall_seconds": round(time.monotonic() - started, 2)}
    seconds = round(time.monotonic() - started, 2)
    repro = max(folder.rglob("repro.py"), key=lambda p: p.stat().st_mtime, default=None)
    if repro is None:
        return {"error": "no repro was written", "wall_seconds": seconds}
    calls = len(re.findall(r"^        \w+ = .*\(", repro.read_text(), re.MULTILINE))
    return {"calls": calls, "wall_seconds": seconds, "queries": len(list(folder.rglob("checkpoints/*.py")))}


def run_overhead(options: argparse.Namespace) -> None:
    """Our own time in a search over graphs of many calls, beside what the trials would cost."""
    import torch

    from torchsleuth.graphs.cut import calls_of
    from torchsleuth.graphs.printer import print_graph
    from torchsleuth.minify.search import search
    from torchsleuth.minify.states import state_of

    aten = torch.ops.aten
    for count in map(int, options.nodes.split(",")):
        chance = random.Random(count)
        graph = torch.fx.Graph()
        nodes = [graph.placeholder("x")]
        for _ in range(count):
            if chance.random() < 0.5:
                pair = (chance.choice(nodes[-8:]), chance.choice(nodes[-8:]))
                nodes.append(graph.call_function(aten.add.Tensor, pair))
            else:
                op = chance.choice([aten.sin.default, aten.cos.default, aten.relu.default, aten.tanh.default])
                nodes.append(graph.call_function(op, (chance.choice(nodes[-8:]),)))
        graph.output((nodes[-1],))
        gm = torch.fx.GraphModule(torch.nn.Module(), graph)
        wanted = {nodes[count // 5].name, nodes[4 * count // 5].name}
        asked = [0, 0.0]

        def oracle(states: Any, wanted: set[str] = wanted, asked: list = asked) -> list[bool]:
            for state in states:
                print_graph(state.graph)  # a real oracle needs the text
                asked[0] += 1
                asked[1] += SECONDS_PER_CALL * calls_of(state.graph)
            return [
                wanted <= {n.name for n in s.graph.graph.nodes if n.op == "call_function"} for s in states
            ]

        state = state_of(gm, [torch.ones(4, 4)])
        started = time.monotonic()
        found = search(state, oracle)
        seconds = time.monotonic() - started
        print(
            f"{count} calls: {found.calls} left after {found.queries} questions, {seconds:.2f} s of our own, "
            f"{asked[1]:.0f} s of trials at {SECONDS_PER_CALL * 1e3:.0f} ms a call: {seconds / asked[1]:.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
