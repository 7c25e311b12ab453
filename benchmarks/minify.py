"""How fast and how small: torchsleuth's minifier beside PyTorch's own, on programs with known culprits.

    python benchmarks/minify.py corpus --corpus FOLDER [--cases 01,05,foobar] [--ways ours,isolated] --out rows.json
    python benchmarks/minify.py table --out rows.json
    python benchmarks/minify.py overhead [--nodes 300,1000,3000,10000]

`corpus` records each program once per tool and then times the making-small alone, from process start to process end:
`torchsleuth minify` (verified three times) with two workers (`ours`) and one (`one`), and PyTorch's launcher as its
manual has it (`isolated`) and with `--no-isolate` (`together`). Rows are written as they come and kept: the same
command goes on where it was stopped. `foobar` and `backend` are programs like those of PyTorch's manual.
`overhead` measures the search without any compiler: a fake oracle answers at once, so what is left is our own time.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# What one call costs to compile with cached kernels, measured (notes/minify-search.md): the yardstick.
SECONDS_PER_CALL = 0.017
WAYS = ("ours", "one", "isolated", "together")
FOOBAR = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(10, 20)
        self.fc2 = torch.nn.Linear(20, 30)

    def forward(self, x):
        x = torch.sigmoid(self.fc1(x))
        x = torch.ops.aten._foobar(x)
        return torch.relu(torch.cos(self.fc2(x)) + 1.0)

with torch.no_grad():
    torch.compile(Model())(torch.randn(4, 10))
"""
BACKEND = """
import torch

def toy_compiler(gm, inputs):
    if any(node.target is torch.relu for node in gm.graph.nodes):
        raise AssertionError("toy compiler knows no relu")
    return gm.forward

def f(x):
    y = torch.sigmoid(torch.ones(200, 200) @ x)
    for _ in range(4):
        y = torch.cos(y) + x
    return torch.relu(y).sum()

torch.compile(f, backend=toy_compiler)(torch.randn(200, 200))
"""
EXAMPLES = {
    "foobar": (
        FOOBAR,
        {"id": "foobar", "kind": "compile_error", "min_nodes": 1, "pytorch_modes": [["aot", 2]]},
    ),
    "backend": (
        BACKEND,
        {"id": "backend", "kind": "compile_error", "min_nodes": 1, "pytorch_modes": [["dynamo", 2]]},
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    corpus = verbs.add_parser("corpus")
    corpus.add_argument("--corpus", type=lambda text: Path(text).resolve(), required=True)
    corpus.add_argument(
        "--cases", default="", help="numbers of cases, foobar, backend; all where none is named"
    )
    corpus.add_argument("--ways", default="ours", help=f"of {', '.join(WAYS)}")
    corpus.add_argument("--limit", type=float, default=900.0, help="seconds for one run of ours")
    corpus.add_argument("--peer-limit", type=float, default=600.0, help="seconds for one run of PyTorch's")
    corpus.add_argument("--out", type=Path, default=Path("minify.json"))
    table = verbs.add_parser("table")
    table.add_argument("--out", type=Path, default=Path("minify.json"))
    overhead = verbs.add_parser("overhead")
    overhead.add_argument("--nodes", default="300,1000,3000,10000")
    options = parser.parse_args()
    {"corpus": run_corpus, "table": print_table, "overhead": run_overhead}[options.verb](options)


def run_corpus(options: argparse.Namespace) -> None:
    rows = json.loads(options.out.read_text()) if options.out.exists() else {}
    wanted = [w for w in options.cases.split(",") if w]
    programs: list[tuple[Any, dict[str, Any]]] = list(EXAMPLES.values())
    for facts in sorted((options.corpus / "cases").glob("case_*.json")):
        programs.append((facts.with_suffix(".py"), json.loads(facts.read_text())))
    for program, about in programs:
        if wanted and not any(about["id"].startswith((f"case_{w}_", w)) for w in wanted):
            continue
        row = rows.setdefault(about["id"], {"kind": about["kind"], "known_calls": about["min_nodes"]})
        for way in options.ways.split(","):
            if way not in row:
                row[way] = measure(program, about, way, options)
                options.out.write_text(json.dumps(rows, indent=1))
                print(about["id"], way, json.dumps(row[way]), flush=True)


def measure(program: Any, about: dict[str, Any], way: str, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="minify-bench-") as scratch:
        folder = Path(scratch)
        env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
        if isinstance(program, str):
            (folder / "program.py").write_text(program)
            program = folder / "program.py"
        else:
            paths = [str(options.corpus / "hook"), *filter(None, [os.environ.get("PYTHONPATH")])]
            env |= {"PYTHONPATH": os.pathsep.join(paths), "FAULT": about["fault"]}
        if way in ("ours", "one"):
            return ours(program, about, folder, env, options.limit, 2 if way == "ours" else 1)
        return theirs(program, about, folder, env, options.peer_limit, isolate=way == "isolated")


def timed(
    command: list[Any], folder: Path, env: dict[str, str], limit: float
) -> tuple[float, subprocess.CompletedProcess[str] | None]:
    """Seconds and result of a command; None where it took longer than the limit, and all of it is ended."""
    started = time.monotonic()
    with open(folder / "stdout", "w") as out, open(folder / "stderr", "w") as err:
        child = subprocess.Popen(
            list(map(str, command)), cwd=folder, env=env, stdout=out, stderr=err, start_new_session=True
        )
        try:
            child.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return round(time.monotonic() - started, 2), None
    texts = [(folder / name).read_text(errors="replace") for name in ("stdout", "stderr")]
    seconds = round(time.monotonic() - started, 2)
    return seconds, subprocess.CompletedProcess(command, child.returncode, *texts)


def ours(
    program: Path, about: dict[str, Any], folder: Path, env: dict[str, str], limit: float, workers: int
) -> dict[str, Any]:
    more = {"accuracy": ["--check-accuracy"], "hang": ["--timeout", "20"]}.get(about["kind"], [])
    cases = ["--cases", folder / "cases"]
    sleuth = [sys.executable, "-m", "torchsleuth"]
    record, _ = timed([*sleuth, "run", "--record-only", *more, *cases, program], folder, env, limit)
    found = [json.loads(p.read_text()) for p in (folder / "cases").glob("*/case.json")]
    fitting = [case for case in found if case["direction"] == about.get("direction", case["direction"])]
    if not found:
        return {"error": "no case was recorded", "record_seconds": record}
    case = (fitting or found)[0]["id"]
    seconds, done = timed(
        [*sleuth, "minify", case, "--json", "--workers", workers, *cases], folder, env, limit
    )
    row: dict[str, Any] = {"record_seconds": record, "minify_seconds": seconds}
    if done is None or done.returncode not in (0, 1):
        return {**row, "error": "time-out" if done is None else done.stderr.strip()[-300:]}
    said = json.loads(done.stdout)
    small, verified = said["minified"], said["verified"]
    kept = {key: small[key] for key in ("calls", "queries", "lines", "input_bytes")}
    return {
        **row,
        **kept,
        "form": said["form"],
        "verified": f"{verified['reproduced']} of {verified['times']}",
        "start_up_seconds": said["seconds"]["start_up"],
        "search_seconds": said["seconds"]["search"],
        "trial_seconds": said["seconds"]["trials"],
        "signature": said["signature"]["message"] or said["signature"]["signal"] or "",
    }


def theirs(
    program: Path, about: dict[str, Any], folder: Path, env: dict[str, str], limit: float, *, isolate: bool
) -> dict[str, Any]:
    """PyTorch's minifier as its manual describes it: run the program, then the launcher it leaves behind."""
    after, level = (about["pytorch_modes"] or [["aot", 2]])[0]
    env = {**env, "TORCHDYNAMO_REPRO_AFTER": str(after), "TORCHDYNAMO_REPRO_LEVEL": str(level)}
    env["TORCH_COMPILE_DEBUG_DIR"] = str(folder)
    record, ran = timed([sys.executable, program], folder, env, limit)
    row: dict[str, Any] = {"record_seconds": record}
    launcher = next(folder.rglob("minifier_launcher.py"), None)
    if launcher is None:
        return {**row, "error": "time-out" if ran is None else "no launcher was written"}
    plain = {k: v for k, v in env.items() if not k.startswith("TORCHDYNAMO_REPRO")}
    arguments = [] if isolate else ["minify", "--no-isolate"]
    row["minify_seconds"], done = timed([sys.executable, launcher, *arguments], folder, plain, limit)
    if done is None:
        return {**row, "error": "time-out"}
    repro = folder / "repro.py"
    if not repro.is_file():
        return {**row, "error": "no repro was written"}
    row["calls"] = len(re.findall(r"^        \w+ = .*\(", repro.read_text(), re.MULTILINE))
    row["trials"] = len(list(folder.rglob("checkpoints/*.py")))
    fresh = {**plain, "TORCHINDUCTOR_CACHE_DIR": str(folder / "again")}
    _, again = timed([sys.executable, repro], folder, fresh, 120 if about["kind"] != "hang" else 40)
    row["fails_again"] = fails_again(about, again)
    return row if row["fails_again"] else {**row, "error": "its repro does not fail so"}


def fails_again(about: dict[str, Any], done: subprocess.CompletedProcess[str] | None) -> bool:
    """Whether a repro of PyTorch's fails in the way that the program did."""
    if about["kind"] == "hang":
        return done is None
    if done is None:
        return False
    if about["kind"] == "crash":
        return done.returncode < 0
    text = done.stdout + done.stderr
    if about["kind"] == "accuracy":
        return "ccuracy" in text and done.returncode != 0
    marks = {"foobar": "_foobar", "backend": "toy compiler knows no relu"}
    return marks.get(about["id"], about.get("mark", "FAULT-SIG")) in text


def print_table(options: argparse.Namespace) -> None:
    rows = json.loads(options.out.read_text())
    ours_columns = [
        "case",
        "kind",
        "calls / known",
        "trials",
        "start-up s",
        "search s",
        "whole s",
        "lines",
        "bytes",
    ]
    columns = [*ours_columns, "isolated s", "--no-isolate s"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name, row in rows.items():
        our = row.get("ours", {})
        peers = [peer_words(row.get(way)) for way in ("isolated", "together")]
        if "calls" not in our:
            print(
                f"| {name} | {row['kind']} | {our.get('error', 'not measured')} | | | | | | | {' | '.join(peers)} |"
            )
            continue
        print(
            f"| {name} | {row['kind']} | {our['calls']} / {row['known_calls']} | {our['queries']} | "
            f"{our['start_up_seconds']} | {our['search_seconds']:.1f} | {our['minify_seconds']:.1f} | {our['lines']} | "
            f"{our['input_bytes']} | {' | '.join(peers)} |"
        )
    done = [row["ours"] for row in rows.values() if "calls" in row.get("ours", {})]
    if done:
        verified = sum(our["verified"] == "3 of 3" for our in done)
        lines, data = (statistics.median(our[key] for our in done) for key in ("lines", "input_bytes"))
        print(f"\n{verified} of {len(rows)} verified 3 of 3; median {lines:.0f} lines, {data:.0f} bytes")
    for way, words in (("isolated", "isolated"), ("together", "--no-isolate")):
        print_ratio(rows, way, f"PyTorch {words}")
    long = {name: row for name, row in rows.items() if row.get("ours", {}).get("queries", 0) > 20}
    print_ratio(long, "one", "one worker (cases with more than 20 trials)")


def peer_words(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    seconds = row.get("minify_seconds")
    calls = f", {row['calls']} calls" if "calls" in row else ""
    return (
        f"{seconds:.0f}{calls}"
        if "error" not in row
        else f"{row['error']} ({seconds or row['record_seconds']:.0f}{calls})"
    )


def print_ratio(rows: dict[str, Any], way: str, words: str) -> None:
    """The geometric mean over the cases that both made small."""
    both = [
        (row[way]["minify_seconds"], row["ours"]["minify_seconds"])
        for row in rows.values()
        if way in row and "error" not in row[way] and "calls" in row.get("ours", {})
    ]
    if both:
        mean = math.exp(statistics.mean(math.log(theirs / ours) for theirs, ours in both))
        print(f"geometric mean, {words} / torchsleuth: {mean:.1f} over {len(both)} cases")


def run_overhead(options: argparse.Namespace) -> None:
    """Our own time in a search over graphs of many calls, beside what the trials would cost."""
    import torch

    from torchsleuth.search.minify.driver import search
    from torchsleuth.search.minify.states import state_of
    from torchsleuth.torch_core.graphs.cut import calls_of
    from torchsleuth.torch_core.graphs.printer import print_graph

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
