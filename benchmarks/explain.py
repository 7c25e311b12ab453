"""How right the counts of `explain` and `recompiles` are, with torch's own beside them, and what watching costs.

    python benchmarks/explain.py counts      every program of explain_programs.py, ours and torch's
    python benchmarks/explain.py overhead    a compiled loop bare and under each verb, compiles left out

The loop is measured in seconds of the processor, the least of several runs, bare and watched in turn.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

LOOP = """
import json, sys, time
import torch

class Model(torch.nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(depth))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        torch._dynamo.graph_break()
        return x.sum()

torch.set_num_threads(1)
width, calls = int(sys.argv[1]), int(sys.argv[2])
model = torch.compile(Model(width, 4), backend=sys.argv[3])
x = torch.randn(width, width)
with torch.no_grad():
    for _ in range(20):
        model(x)
    started = time.process_time()
    for _ in range(calls):
        model(x)
    seconds = time.process_time() - started
print("LOOP", seconds, file=sys.stderr)
"""
# Width of the model, calls, backend: a call that takes a few hundred microseconds, and one that does nearly nothing.
SIZES = {"model": ("256", "400", "inductor"), "tiny": ("4", "5000", "eager")}
WAYS: dict[str, list[str] | None] = {
    "bare": None,
    "explain": ["explain"],
    "recompiles": ["recompiles", "--no-try"],
    "run": ["run", "--record-only"],
    "run --explain": ["run", "--record-only", "--explain"],
}


def counts() -> None:
    """Prints one line per program and how many of each count are right."""
    import torch
    from torch._dynamo.backends.debugging import ExplainWithBackend as TorchExplain
    from torch._dynamo.utils import clear_compilation_metrics, get_compilation_metrics

    from explain_programs import PROGRAMS
    from torchsleuth import ExplainWithBackend

    logging.disable(logging.WARNING)
    right = dict.fromkeys(("breaks", "recompiles", "torch breaks", "torch recompiles"), 0)
    print(f"{'program':34} {'breaks':>12} {'recompiles':>12}   (true / ours / torch's)")
    for program in PROGRAMS:
        torch.compiler.reset()
        ours = ExplainWithBackend("eager")
        program.run(lambda fn, o=ours, **options: torch.compile(fn, backend=o, **options))
        mine = ours.output().breaks
        torch.compiler.reset()
        clear_compilation_metrics()
        theirs = TorchExplain("eager")
        program.run(lambda fn, t=theirs, **options: torch.compile(fn, backend=t, **options))
        their_breaks = theirs.output().graph_break_count
        metrics = get_compilation_metrics()
        their_recompiles = sum(m.recompile_reason is not None for m in metrics)
        right["breaks"] += mine.graph_break_count == program.breaks
        right["recompiles"] += mine.recompilations == program.recompiles
        right["torch breaks"] += their_breaks == program.breaks
        right["torch recompiles"] += their_recompiles == program.recompiles
        print(
            f"{program.name:34} {program.breaks:>4}{mine.graph_break_count:>4}{their_breaks:>4} "
            f"{program.recompiles:>4}{mine.recompilations:>4}{their_recompiles:>4}"
        )
    print(f"\n{len(PROGRAMS)} programs; right: " + ", ".join(f"{name} {n}" for name, n in right.items()))


def overhead(repeats: int) -> None:
    """Prints the loop's seconds of the processor, bare and watched."""
    with tempfile.TemporaryDirectory() as scratch:
        script = Path(scratch) / "loop.py"
        script.write_text(LOOP)
        for size, arguments in SIZES.items():
            least: dict[str, float] = {}
            for _ in range(repeats):
                for way, verb in WAYS.items():
                    seconds = _loop(script, arguments, verb, Path(scratch))
                    least[way] = min(least.get(way, seconds), seconds)
            bare = least["bare"]
            told = {way: f"{s:.3f} s ({(s / bare - 1) * 100:+.1f} %)" for way, s in least.items()}
            print(size, json.dumps(told, indent=1))


def _loop(script: Path, arguments: tuple[str, ...], verb: list[str] | None, scratch: Path) -> float:
    ours = [] if verb is None else ["-m", "torchsleuth", *verb, "--cases", str(scratch / "cases")]
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(scratch / "cache")}
    ran = subprocess.run(
        [sys.executable, *ours, str(script), *arguments], env=env, capture_output=True, text=True, timeout=900
    )
    line = next((line for line in ran.stderr.splitlines() if line.startswith("LOOP ")), None)
    if line is None:
        raise SystemExit(f"{verb} failed:\n{ran.stderr}")
    return float(line.split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["counts", "overhead"])
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    if asked.what == "counts":
        counts()
    else:
        overhead(asked.repeats)


if __name__ == "__main__":
    main()
