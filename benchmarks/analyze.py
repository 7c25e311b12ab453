"""Does `analyze` name the right node, and at what cost? Injected faults, beside `analyze` of PyTorch's after-AOT repro.

    python benchmarks/analyze.py injected --calls 100,300,1000,3000 --out rows.json
    python benchmarks/analyze.py corpus --corpus FOLDER --out rows.json
    python benchmarks/analyze.py injected --device cuda --out rows.json
    python benchmarks/analyze.py table --out rows.json

`injected` compiles a stack of transformer blocks in which the lowering of one node, chosen by the seed, is wrong. Each
way runs in a process of its own on the same graph: `ours` is `torchsleuth.repro_analyze`, `torch` PyTorch's own, with
its defaults, `runs` the yardstick: one run in eager float64 and two compiled ones, compile apart. PyTorch's own sees no
value of a fused kernel: for C++ it has no hooks, and for Triton it looks for the names of operations (op0) among those
of buffers (buf0). `torch-mended` is PyTorch's own with the latter put right, for devices. `seen` are the values that
were compared. `corpus` runs every
program of a folder with known culprits under `torchsleuth run --check-accuracy --record-only`, and analyses its cases.
CPU seconds are counted, children included, because a machine may be busy; threads that wait for work sleep
(OMP_WAIT_POLICY), whatever the way, or waiting would count as work. With `--caches warm` a way runs twice on one cache
folder, and the second run counts. `device MiB` is what torch reserved there; for `runs` that is the model's own.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

WAYS = ("runs", "ours", "torch")
MENDED = "torch-mended"
# Operators whose lowering is made wrong. None of softmax's: a factor there is divided out again, and nothing is wrong.
FAULTY = ("tanh", "rsqrt", "relu", "sigmoid")
WIDTH, ROWS = 64, 32
# Phases that run the whole graph; the others compile parts of it.
RUNS = ("accumulated", "local", "determinism", "substitution")


def model(blocks: int, width: int) -> Callable[..., Any]:
    def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        scores = torch.softmax(x @ x.T / 8, -1)
        h = F.layer_norm(x + scores @ x, (width,))
        h = torch.tanh(h @ w) * torch.sigmoid(h)
        return F.layer_norm(x + torch.relu(h), (width,))

    def forward(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor]:
        for w in weights:
            x = block(x, w)
        return (x,)

    return forward


def graph_of(calls: int, device: str, size: int = 1) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """About so many aten calls, as Inductor gets them, and inputs."""
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    width = WIDTH * size

    def traced(blocks: int) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
        torch.manual_seed(0)
        inputs = [torch.randn(ROWS * size, width), *(torch.randn(width, width) / 8 for _ in range(blocks))]
        traces = make_fx(model(blocks, width), decomposition_table=select_decomp_table(), tracing_mode="fake")
        made = traces(*inputs)
        return made, inputs

    with torch.device(device):
        one = sum(n.op == "call_function" for n in traced(1)[0].graph.nodes)
        return traced(max(1, round(calls / one)))


def plant(graph: torch.fx.GraphModule, seed: int) -> str:
    """Makes the lowering of one node wrong, wherever a node of that name is lowered; its name."""
    from torch._inductor.lowering import lowerings
    from torch._inductor.virtualized import V

    calls = [n for n in graph.graph.nodes if n.op == "call_function"]
    nodes = [n for n in calls if n.target.__name__.split(".")[0] in FAULTY]
    chosen = random.Random(seed).choice(nodes)
    original = lowerings[chosen.target]

    @functools.wraps(original)
    def faulty(*args: Any, **kwargs: Any) -> Any:
        out = original(*args, **kwargs)
        here = getattr(V.graph, "current_node", None)
        wrong = here is not None and here.name == chosen.name
        return lowerings[torch.ops.aten.mul.Tensor](out, 1.25) if wrong else out

    lowerings[chosen.target] = faulty
    return chosen.name


def one(way: str, calls: int, seed: int, device: str, size: int) -> dict[str, Any]:
    """One way on one graph, in this process."""
    graph, inputs = graph_of(calls, device, size)
    node = plant(graph, seed)
    found: dict[str, Any] = {"calls": sum(n.op == "call_function" for n in graph.graph.nodes), "node": node}
    before, spent = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, cpu()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        if way == "ours":
            from torchsleuth.search.analyze.models import repro_analyze

            told = repro_analyze(graph, inputs)
            found["found"] = told.culprit.node if told.culprit else None
            found["phases"] = told.seconds
            found["runs"] = round(sum(told.seconds.get(name, 0.0) for name in RUNS), 3)
            found["seen"] = len(told.values)
        elif way in ("torch", MENDED):
            if way == MENDED:
                mend_hooks()
            found["found"], found["seen"] = torchs_own(graph, inputs, folder)
        else:
            found |= yardstick(graph, inputs)
        if device == "cuda":
            found.setdefault("device_mib", torch.cuda.max_memory_reserved() >> 20)
        found["written"] = sum(f.stat().st_size for f in Path(folder).rglob("*") if f.is_file())
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cost = {"seconds": round(time.monotonic() - started, 2), "cpu": round(cpu() - spent, 2)}
    return {**found, **cost, "peak_mib": after >> 10, "risen_mib": (after - before) >> 10}


def cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def yardstick(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> dict[str, float]:
    """CPU seconds of one eager float64 run, of two compiled runs, and of the compile."""
    from torchsleuth.torch_core.compare.divergence.parts import aten_ways
    from torchsleuth.torch_core.compare.reference.float64 import widen_graph, widen_inputs

    with torch.no_grad():
        own = {}
        begun = cpu()
        compiled = aten_ways({"is_inference": True}).compiled(graph, inputs)
        compiling, begun = cpu() - begun, cpu()
        for _ in range(2):
            compiled(list(inputs))
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
            own = {"device_mib": torch.cuda.max_memory_reserved() >> 20}
        two_runs = cpu() - begun
        wide, given = widen_graph(graph), widen_inputs(inputs)
        begun = cpu()
        torch.fx.Interpreter(wide).run(*given)
        float64 = cpu() - begun
    times = {"float64": round(float64, 4), "compile": round(compiling, 2), "two_runs": round(two_runs, 4)}
    return times | own


def mend_hooks() -> None:
    """Lets PyTorch find the buffers that its hooks are for."""
    from torch._inductor.codegen.common import KernelArgs
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen
    from torch._inductor.virtualized import V

    live, write = KernelArgs.live_output_buffers, PythonWrapperCodegen.writeline

    def operations(args: Any) -> Any:
        names = live(args)
        return names | {V.graph.scheduler.name_to_buf[name].defining_op.get_name() for name in names}

    def with_buffer(wrapper: Any, line: Any) -> None:
        hook = (
            re.fullmatch(r"(run_intermediate_hooks\(.*, )(op\d+)\)", line) if isinstance(line, str) else None
        )
        if hook is not None:
            (buffer,) = V.graph.scheduler.name_to_node[hook[2]].get_buffer_names()
            line = f"{hook[1]}{buffer})"
        write(wrapper, line)

    KernelArgs.live_output_buffers = operations  # type: ignore[method-assign]
    PythonWrapperCodegen.writeline = with_buffer  # type: ignore[method-assign]


def torchs_own(
    graph: torch.fx.GraphModule, inputs: list[torch.Tensor], folder: str
) -> tuple[str | None, int]:
    """PyTorch's `analyze` with its defaults: the first node it calls diverging, where it names one; values seen."""
    import contextlib
    import io

    from torch._dynamo.repro.after_aot import repro_analyze
    from torch._dynamo.utils import counters

    def load_args(reader: Any) -> None:
        # The first reader only counts.
        getattr(reader, "args", []).extend(each.clone() for each in inputs)

    load_args._version = 0  # type: ignore[attr-defined]
    options = argparse.Namespace(
        save_dir=folder,
        tracing_mode="real",
        skip_saving_inductor_intermediates=False,
        skip_saving_float64_intermediates=False,
        skip_check_deterministic=False,
        stable_hash=False,
    )
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), torch.no_grad():
        repro_analyze(options, graph, load_args)
    named = re.findall(r"DIVERGED at (\w+)", said.getvalue())
    return named[0] if named else None, counters["inductor"]["intermediate_hooks"]


def asked(*arguments: str, runs: int, timeout: float) -> dict[str, Any]:
    """What the last of so many runs on one cache folder told."""
    command = [sys.executable, __file__, "one", *arguments]
    with tempfile.TemporaryDirectory() as cache:
        env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "OMP_WAIT_POLICY": "passive"}
        try:
            for _ in range(runs):
                ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout)
            return json.loads(ran.stdout.splitlines()[-1])
        except subprocess.TimeoutExpired:
            return {"error": f"not done after {timeout:g} s"}
        except (IndexError, ValueError):
            return {"error": ran.stderr.strip().splitlines()[-1:] or ["no answer"]}


def corpus(folder: Path, timeout: float) -> Iterator[dict[str, Any]]:
    """Every wrong result that the programs of a corpus leave, analysed; beside it what is known of the program."""
    for program, facts in accuracy_programs(folder):
        with tempfile.TemporaryDirectory() as cases:
            env = {**os.environ, "TORCHSLEUTH_CASES": cases, "TORCHINDUCTOR_CACHE_DIR": f"{cases}/.cache"}
            if "fault" in facts:  # planted, also in the processes that analyse
                paths = [str(folder.absolute() / "hook"), *filter(None, [os.environ.get("PYTHONPATH")])]
                env |= {"FAULT": facts["fault"], "PYTHONPATH": os.pathsep.join(paths)}
            sleuth = [sys.executable, "-m", "torchsleuth"]
            watched = [*sleuth, "run", "--check-accuracy", "--record-only", "--json", str(program)]
            subprocess.run(watched, env=env, capture_output=True, timeout=timeout)
            known = {"program": program.stem, "expected": facts.get("culprit")}
            found = []
            for case in Path(cases).glob("*/case.json"):
                if json.loads(case.read_text())["kind"] != "accuracy":
                    continue
                ran = subprocess.run(
                    [*sleuth, "analyze", "--yes", "--json", str(case.parent)],
                    env=env,
                    capture_output=True,
                    text=True,
                )
                told = json.loads(ran.stdout) if ran.stdout else {"words": ran.stderr.strip()}
                culprit = told.get("culprit") or {}
                keys = ("op", "calls", "user_line", "confirmed", "recovers")
                found.append({**known, **{key: culprit.get(key) for key in keys}, "words": told["words"]})
            yield from found or [{**known, "words": "no wrong result was recorded"}]


def accuracy_programs(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The programs of a corpus that end in wrong numbers, with the facts that lie beside them."""
    for facts in folder.rglob("*.json"):
        known = json.loads(facts.read_text())
        for each in known if isinstance(known, list) else [{**known, "program": f"{facts.stem}.py"}]:
            if each.get("kind") == "accuracy":
                yield facts.parent / each["program"], each


def table(rows: list[dict[str, Any]]) -> None:
    named = [row for row in rows if "way" not in row]
    if named:
        print("| program | known culprit | named | line | confirmed | recovers |")
        print("|---|---|---|---|---|---|")
    for row in named:
        shown = [row.get(key) for key in ("program", "expected", "op", "user_line", "confirmed", "recovers")]
        print(f"| {' | '.join(map(str, shown))} |")
        if not row.get("op"):
            print(f"| | {row['words']} | | | | |")
    rows = [row for row in rows if "way" in row]
    if rows:
        print(
            "| way | caches | calls | seen | right node | CPU s | wall s | peak MiB | device MiB | written MiB |"
        )
        print("|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        if "error" in row:
            print(f"| {row['way']} | {row['caches']} | {row['asked']} | {row['error']} | | | | | | |")
        else:
            right = (
                "-" if "found" not in row else "yes" if row["found"] == row["node"] else f"no: {row['found']}"
            )
            print(
                f"| {row['way']} | {row['caches']} | {row['calls']} | {row.get('seen', '-')} | {right} | {row['cpu']} "
                f"| {row['seconds']} | {row['peak_mib']} | {row.get('device_mib', '-')} "
                f"| {row['written'] / 2**20:.1f} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["injected", "corpus", "table", "one"])
    parser.add_argument("--calls", default="100,300,1000,3000")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--caches", choices=["cold", "warm"], default="cold")
    parser.add_argument("--size", type=int, default=1, help="times as many rows and columns")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--timeout", type=float, default=1200)
    parser.add_argument("--out", type=Path, default=Path("analyze-rows.json"))
    options = parser.parse_args()
    if options.what == "one":
        print(json.dumps(one(options.ways, int(options.calls), options.seeds, options.device, options.size)))
        return
    rows = json.loads(options.out.read_text()) if options.out.exists() else []
    if options.what == "injected":
        for calls in map(int, options.calls.split(",")):
            for seed in range(options.seeds):
                for way in options.ways.split(","):
                    given = ("--calls", str(calls), "--seeds", str(seed), "--ways", way)
                    given += ("--device", options.device, "--size", str(options.size))
                    runs = 2 if options.caches == "warm" else 1
                    told = asked(*given, runs=runs, timeout=options.timeout)
                    rows.append({"way": way, "asked": calls, "caches": options.caches, **told})
                    options.out.write_text(json.dumps(rows, indent=1))
    elif options.what == "corpus":
        for row in corpus(options.corpus, options.timeout):
            rows.append(row)
            options.out.write_text(json.dumps(rows, indent=1))
    table(rows)


if __name__ == "__main__":
    main()
