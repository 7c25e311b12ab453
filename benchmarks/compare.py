"""How well does `judge` tell healthy compiled results from wrong ones? One table, same graphs, same run.

    python benchmarks/compare.py            # the full table: 65 graphs x 3 dtypes, about 10 minutes
    python benchmarks/compare.py --quick    # 6 graphs, a minute
    python benchmarks/compare.py --device cuda --jobs 5

Healthy results come from the real backend. Faults are planted in a copy of the graph; their results are made
three ways in turn: run eagerly, run with float32 intermediates as a fusing compiler would, and the exact effect
of the fault added to the real compiled result. A fault counts when its true effect exceeds 16 ulps of the rms.
What a second opinion acquits is counted apart: such a fault is no larger than what textbook ways to compute the
graph, and so healthy compilers, do to it. Of what is not detected the largest effects are named.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import math
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from planted_faults import VISIBLE_ULPS, effect_in_ulps, faults, run_fused
from torchsleuth.torch_core.compare.reference.eager import result_of
from torchsleuth.torch_core.compare.reference.float64 import widen_graph, widen_inputs
from torchsleuth.torch_core.compare.reference.rng import save_rng
from torchsleuth.torch_core.compare.same import same
from torchsleuth.torch_core.compare.verdict.calibrate import UNCALIBRATED, HealthyGraph, healthy_graph
from torchsleuth.torch_core.compare.verdict.evidence import Evidence, gather
from torchsleuth.torch_core.compare.verdict.judge import judge_results, weigh

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
SEEDS = range(5000, 5065)
"""Reported seeds. Limits were chosen on seeds 0-199, and seeds 1000-1064 showed the need for `decisions`."""

OURS, FIRST_LOOK = "torchsleuth judge", "torchsleuth, first look alone"

Results = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Sample:
    """One result to be judged: where it came from and whether it is wrong."""

    dtype: str
    kind: str
    way: str
    results: Results
    ulps: float = 0.0
    """The largest true effect of the fault on an output, in ulps of that output's rms."""


def torch_own_same(ref: object, res: object, fp64_ref: object = None, **options: object) -> bool:
    """PyTorch's own comparison, the baseline."""
    from torch._dynamo.utils import same as torchs_same

    return bool(torchs_same(ref, res, fp64_ref, log_error=lambda *_: None, **options))


def compiled_results(case: HealthyGraph) -> Results:
    torch.compiler.reset()
    with torch.no_grad():
        return tuple(torch.compile(case.graph)(*(x.clone() for x in case.inputs)))


def samples(case: HealthyGraph, name: str, per_kind: int) -> Iterator[Sample]:
    """The healthy compiled result, then every visible fault, the three ways in turn."""
    healthy = compiled_results(case)
    yield Sample(name, "healthy", "compiled", healthy)
    wide = widen_inputs(case.inputs)
    truth = widen_graph(case.graph)(*wide)
    turn = 0
    for fault in faults(case.graph, random.Random(case.seed), case.dtype, per_kind):
        ulps = effect_in_ulps(fault.graph, case.graph, case.inputs, case.dtype)
        if ulps <= VISIBLE_ULPS:
            continue
        way = ("eager", "fused", "added")[turn % 3]
        turn += 1
        if way == "eager":
            results = tuple(fault.graph(*case.inputs))
        elif way == "fused":
            results = run_fused(fault.graph, case.inputs, case.dtype)
        else:
            results = _added(healthy, truth, widen_graph(fault.graph)(*wide))
        yield Sample(name, fault.kind, way, results, ulps)


def _added(healthy: Results, truth: Results, wrong: Results) -> Results:
    out = []
    for h, t, w in zip(healthy, truth, wrong):
        if h.is_floating_point():
            out.append((h.double() + (w - t)).to(h.dtype))
        else:
            out.append(torch.where(w != t, w.to(h.dtype), h))
    return tuple(out)


def judges(evidence: Evidence) -> dict[str, Callable[[Results], bool]]:
    """Every rule of the table: does it call the results wrong?"""
    first = replace(evidence, second_opinion=None)
    eager = tuple(leaf.eager for leaf in evidence.leaves)
    truth = tuple(leaf.truth for leaf in evidence.leaves)

    def assert_close(results: Results) -> bool:
        try:
            torch.testing.assert_close(results, eager)
        except AssertionError:
            return True
        return False

    return {
        "torch.testing.assert_close": assert_close,
        "torch same, tol 1e-3": lambda r: not torch_own_same(eager, r, truth, tol=1e-3, equal_nan=True),
        "torch same, tol 1e-4": lambda r: not torch_own_same(eager, r, truth, tol=1e-4, equal_nan=True),
        OURS: lambda r: weigh(evidence, result_of(r), calibration=UNCALIBRATED).diverged,
        FIRST_LOOK: lambda r: weigh(first, result_of(r), calibration=UNCALIBRATED).diverged,
    }


def accuracy_table(seeds: range, per_kind: int, device: str, dtypes: Sequence[str] = tuple(DTYPES)) -> dict:
    counts: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    began = time.perf_counter()
    for name in dtypes:
        for seed in seeds:
            case = healthy_graph(seed, DTYPES[name], device)
            evidence = gather(case.graph, case.inputs, start=save_rng())
            rules = judges(evidence)
            for sample in samples(case, name, per_kind):
                said = {rule: calls_wrong(sample.results) for rule, calls_wrong in rules.items()}
                if sample.kind != "healthy" and not said[OURS]:
                    looked = "acquitted" if said[FIRST_LOOK] else "unseen"
                    print(f"# {name} {seed} {sample.kind} {looked}: {sample.ulps:.0f} ulps", flush=True)
                for rule, wrong in said.items():
                    for key in _keys(sample):
                        counts[rule][key, "all"] += 1
                        counts[rule][key, "wrong"] += wrong
        print(f"# {name} done after {time.perf_counter() - began:.0f} s", flush=True)
    return counts


def _keys(sample: Sample) -> list[tuple[str, ...]]:
    if sample.kind == "healthy":
        return [(sample.dtype, "healthy")]
    return [(sample.dtype, "fault"), (sample.dtype, "kind", sample.kind), (sample.dtype, "way", sample.way)]


def print_accuracy(counts: dict) -> None:
    print("\n| rule | false alarms fp32 / fp16 / bf16 | detected fp32 / fp16 / bf16 |\n|---|---|---|")
    for rule, found in counts.items():
        alarms = " / ".join(
            f"{found[(d, 'healthy'), 'wrong']}/{found[(d, 'healthy'), 'all']}" for d in DTYPES
        )
        shares = " / ".join(_percent(found, (d, "fault")) for d in DTYPES)
        print(f"| {rule} | {alarms} | {shares} |")
    ours = counts[OURS]
    total = {d: ours[(d, "fault"), "all"] for d in DTYPES}
    print(f"\nvisible faults: {sum(total.values())} ({', '.join(f'{d} {n}' for d, n in total.items())})")
    for part in ("kind", "way"):
        names = sorted({key[2] for key, _ in ours if len(key) == 3 and key[1] == part})
        print(f"\n| ours, by {part} | " + " | ".join(DTYPES) + " |\n|---|" + "---|" * len(DTYPES))
        for name in names:
            cells = [f"{ours[(d, part, name), 'wrong']}/{ours[(d, part, name), 'all']}" for d in DTYPES]
            print(f"| {name} | " + " | ".join(cells) + " |")


def _percent(found: collections.Counter, key: tuple[str, str]) -> str:
    every = found[key, "all"]
    return f"{100 * found[key, 'wrong'] / every:.1f} %" if every else "-"


def _best(function: Callable[[], object], times: int = 3) -> float:
    best = float("inf")
    for _ in range(times):
        began = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - began)
    return best


def same_figures(gib: float, device: str) -> None:
    """Plain `same` against reading both tensors once, and against torch's own."""
    count = int(gib * (1 << 28))
    left = torch.randn(count, device=device)
    right = left + 1e-6
    ready = torch.cuda.synchronize if device == "cuda" else lambda: None
    reading = _best(lambda: (left.sum(), right.sum(), ready()))
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        base = torch.cuda.memory_allocated()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ours = _best(lambda: (same(left, right), ready()))
    extra = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    if device == "cuda":
        extra = (torch.cuda.max_memory_allocated() - base) / 2**20
    theirs = _best(lambda: (torch_own_same(left, right), ready()), 1)
    print(
        f"\n| plain same, {gib:g} GiB of float32 | seconds | over reading both once | extra memory |\n|---|---|---|---|"
    )
    print(f"| reading both once (sum) | {reading:.3f} | 1.00 | - |")
    print(f"| torchsleuth same | {ours:.3f} | {ours / reading:.2f} | {extra:.0f} MiB |")
    print(
        f"| torch same | {theirs:.3f} | {theirs / reading:.2f} | {4 * gib * 1024 / 4 * 3:.0f} MiB or more |"
    )


class Block(torch.nn.Module):
    """A transformer block in aten terms, the size of a small language model's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.out = torch.nn.LayerNorm(width), torch.nn.Linear(width, width)
        self.qkv, self.up, self.down = (
            torch.nn.Linear(a * width, b * width) for a, b in ((1, 3), (1, 4), (4, 1))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        weights = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1)
        x = x + self.out(weights @ v)
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def cost_figures(device: str, quick: bool) -> None:
    """What one `judge_results` costs, in runs of the same graph in eager float64."""
    print(
        "\n| graph | eager float64 | judge | float64 runs made | judge / eager float64 |\n|---|---|---|---|---|"
    )
    width, length = (256, 128) if quick else (768, 512)
    module = torch.fx.symbolic_trace(Block(width).to(device).eval())
    values = torch.randn(2, length, width, device=device)
    cases = [(f"transformer block {2 * length}x{width}", module, [values])]
    for seed in (1003, 1010):
        case = healthy_graph(seed, torch.float32, device)
        cases.append(
            (
                f"healthy graph {seed}, {len(case.graph.graph.nodes)} nodes, 2,048 elements",
                case.graph,
                list(case.inputs),
            )
        )
    for name, graph, inputs in cases:
        once, whole, runs = _cost(graph, inputs, device)
        print(f"| {name} | {once * 1e3:.2f} ms | {whole * 1e3:.1f} ms | {runs} | {whole / once:.1f} |")


def _cost(graph: torch.fx.GraphModule, inputs: list, device: str) -> tuple[float, float, int]:
    wide, wide_inputs = widen_graph(graph), widen_inputs(inputs)
    ready = torch.cuda.synchronize if device == "cuda" else lambda: None
    with torch.no_grad():
        results = graph(*inputs)
        once = _best(lambda: (wide(*wide_inputs), ready()), 5)
        whole = _best(lambda: (judge_results(graph, inputs, None, results), ready()))
        return once, whole, judge_results(graph, inputs, None, results).runs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="6 graphs and small sizes")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--seeds", default=None, help="first:last seed, for example 5000:5065")
    parser.add_argument("--only", choices=("accuracy", "same", "cost"), default=None)
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="of the accuracy table")
    parser.add_argument("--per-kind", type=int, default=3, help="faults of each kind per graph and dtype")
    parser.add_argument("--json", default=None, help="also write the counts here")
    parser.add_argument(
        "--jobs", type=int, default=1, help="processes for the accuracy table, seeds shared out"
    )
    given = parser.parse_args()
    seeds = range(*map(int, given.seeds.split(":"))) if given.seeds else SEEDS
    print(f"torch {torch.__version__}, {given.device}, {torch.get_num_threads()} threads")
    if given.only in (None, "same"):
        same_figures(0.125 if given.quick else 1.0, given.device)
    if given.only in (None, "cost"):
        cost_figures(given.device, given.quick)
    if given.only in (None, "accuracy"):
        seeds = seeds[:6] if given.quick else seeds
        if given.jobs > 1:
            counts = shared_out(seeds, given)
        else:
            counts = accuracy_table(seeds, given.per_kind, given.device, given.dtypes.split(","))
        print_accuracy(counts)
        if given.json:
            with open(given.json, "w") as out:
                json.dump({rule: {str(k): v for k, v in c.items()} for rule, c in counts.items()}, out)


def shared_out(seeds: range, given: argparse.Namespace) -> dict[str, collections.Counter]:
    """The counts of several processes, each with a part of the seeds."""
    counts: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    with tempfile.TemporaryDirectory() as folder:
        step = math.ceil(len(seeds) / given.jobs)
        parts = [seeds[start : start + step] for start in range(0, len(seeds), step)]
        files = [f"{folder}/{part.start}.json" for part in parts]
        options = ["--device", given.device, "--only", "accuracy", "--per-kind", str(given.per_kind)]
        options += ["--dtypes", given.dtypes]
        running = [
            subprocess.Popen(
                [sys.executable, __file__, *options, "--seeds", f"{part.start}:{part.stop}", "--json", file],
                stdout=subprocess.DEVNULL,
            )
            for part, file in zip(parts, files)
        ]
        statuses = [process.wait() for process in running]
        if any(statuses):
            raise SystemExit("a process of the table failed; its error stands above")
        for file in files:
            with open(file) as text:
                for rule, found in json.load(text).items():
                    counts[rule].update({ast.literal_eval(key): number for key, number in found.items()})
    return counts


if __name__ == "__main__":
    main()
