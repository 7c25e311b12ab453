"""What watching costs a healthy program, beside the same program bare and under PyTorch's own minifier switches.

    python benchmarks/watch.py [--repeats 3] [--calls 300]

Every row is the same training program in fresh processes with fresh kernel caches, the ways in turn. First call:
the first forward and backward, compile included. Steady: calls after that, the best median of twenty in a row. Memory:
peak resident set. The best of the repeats is shown, because noise only ever adds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from torchsleuth.core.processes.kernel_caches import hand_probes_to, keep_probes_of

HEALTHY = """
import json, resource, statistics, sys, time
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
d = 128
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.n, self.a, self.b = torch.nn.LayerNorm(d), torch.nn.Linear(d, 4 * d), torch.nn.Linear(4 * d, d)
    def forward(self, x):
        return x + self.b(torch.nn.functional.gelu(self.a(self.n(x))))
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(6))
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.square().mean()
net = Net()
step = torch.compile(net)
x = torch.randn(8, d)
def once():
    started = time.perf_counter()
    step(x).backward()
    net.zero_grad()
    return time.perf_counter() - started
first = once()
once()
chunks = [[once() for _ in range(20)] for _ in range(max(1, int(sys.argv[1]) // 20))]
steady = min(statistics.median(chunk) for chunk in chunks)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"first": first, "steady": steady, "peak": peak / 1024}))
"""

# 3,000 calls, and a backend that refuses them: what does the case cost beyond the program itself?
LARGE = """
import time, torch
def refuse(gm, inputs):
    raise RuntimeError("refused")
def f(x):
    for i in range(1500):
        x = (x + i).sin()
    return x
started = time.perf_counter()
try:
    torch.compile(f, backend=refuse)(torch.ones(8))
except Exception:
    pass
"""

WAYS = {
    "bare": ([], {}),
    "torchsleuth run": (["-m", "torchsleuth", "run"], {}),
    "torchsleuth run --check-accuracy": (
        ["-m", "torchsleuth", "run", "--check-accuracy", "--record-only"],
        {},
    ),
    "REPRO_AFTER=aot level 2": ([], {"TORCHDYNAMO_REPRO_AFTER": "aot", "TORCHDYNAMO_REPRO_LEVEL": "2"}),
    "REPRO_AFTER=aot level 3": ([], {"TORCHDYNAMO_REPRO_AFTER": "aot", "TORCHDYNAMO_REPRO_LEVEL": "3"}),
    "REPRO_AFTER=aot level 4": ([], {"TORCHDYNAMO_REPRO_AFTER": "aot", "TORCHDYNAMO_REPRO_LEVEL": "4"}),
}


def run(way: str, source: str, *arguments: str, timeout: float = 900) -> tuple[float, str]:
    """Seconds and standard output of one fresh process."""
    words, variables = WAYS[way]
    with tempfile.TemporaryDirectory() as scratch:
        program, cache = Path(scratch, "program.py"), Path(scratch, "cache")
        program.write_text(source)
        hand_probes_to(cache)
        env = {**os.environ, **variables, "TORCHINDUCTOR_CACHE_DIR": str(cache)}
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, *words, str(program), *arguments],
            cwd=scratch,
            env=env,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        seconds = time.perf_counter() - started
        keep_probes_of(cache)
        return seconds, done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--calls", type=int, default=300)
    options = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    run("bare", HEALTHY, "1")  # fills the disk cache and the probes
    for _ in range(options.repeats):
        for way in WAYS:
            slow = way.endswith(("level 3", "level 4"))  # 0.1 to 0.3 s for each call
            calls = min(40, options.calls) if slow else options.calls
            text = run(way, HEALTHY, str(calls))[1].strip().splitlines()
            if text:
                found[way].append(json.loads(text[-1]))
    best = {way: {k: min(r[k] for r in rows) for k in rows[0]} for way, rows in found.items() if rows}
    bare = best["bare"]
    print("| way | first call s | | steady ms | | peak MiB | |\n|---|---|---|---|---|---|---|")
    for way in WAYS:
        if way not in best:
            print(f"| {way} | did not finish | | | | | |")
            continue
        row = best[way]
        cells = [f"{row['first']:.2f}", f"{row['steady'] * 1e3:.3f}", f"{row['peak']:.0f}"]
        change = [f"{100 * (row[k] / bare[k] - 1):+.1f} %" for k in ("first", "steady", "peak")]
        print(f"| {way} | " + " | ".join(f"{a} | {b}" for a, b in zip(cells, change)) + " |")
    alone = min(run("bare", LARGE)[0] for _ in range(options.repeats))
    WAYS["record"] = (["-m", "torchsleuth", "run", "--record-only"], {})
    watched = min(run("record", LARGE)[0] for _ in range(options.repeats))
    print(
        f"\nA case of a graph of 3,000 calls: {watched - alone:.2f} s beyond the program's own {alone:.1f} s."
    )


if __name__ == "__main__":
    main()
