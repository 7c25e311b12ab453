"""Measure on this machine how far healthy compiled graphs lie from the truth, and how often `judge` cries wolf.

The idea: healthy random graphs, compiled here, show this machine's math library and accelerator; the largest distance
seen raises the limits that `judge` uses from then on. A healthy graph is a pure function of its seed and dtype, so that
a calibration, a benchmark and a bug report can name one by a number; its values stay of order one, so that float16
neither overflows nor underflows.

As a process, `python -m torchsleuth.torch_core.compare.verdict.calibrate cpu 20 keep`, it speaks JSON lines on stdout:
`{"done": 3, "total": 60}` after each graph, at the end the calibration and the file it was kept in. What compiling
prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Proxy
from torch.fx.proxy import GraphAppendingTracer
from torch.nn import functional as F

from torchsleuth.torch_core.compare.verdict.judge import judge
from torchsleuth.torch_core.compare.verdict.limits import (
    Calibration,
    Quantiles,
    machine_name,
    save_calibration,
)
from torchsleuth.torch_core.compare.verdict.verdict import Verdict

Grow = Callable[["Grower"], Any]
"""Adds a step to the graph that is grown, and gives its value: functions of torch, called on fx's stand-ins."""


@dataclass(frozen=True)
class HealthyGraph:
    """A graph, the inputs to run it on, and the seed and dtype that give both again."""

    seed: int
    dtype: torch.dtype
    graph: GraphModule
    inputs: tuple[torch.Tensor, ...]


def healthy_graph(seed: int, dtype: torch.dtype, device: str = "cpu") -> HealthyGraph:
    """The healthy graph of a seed: 6 to 28 steps over elementwise ops, reductions, norms and products.

    Example: `case = healthy_graph(7, torch.bfloat16); case.graph(*case.inputs)`.
    """
    grower = Grower(random.Random(seed), dtype)
    for _ in range(grower.random.randint(6, 28)):
        grower.step()
    graph = grower.finish()
    generator = torch.Generator().manual_seed(seed)
    inputs = [make(generator, dtype).to(device) for make in grower.inputs]
    return HealthyGraph(seed, dtype, graph, tuple(inputs))


class Grower:
    """A graph being grown: live values of one shape, and the recipe of every input."""

    def __init__(self, rng: random.Random, dtype: torch.dtype) -> None:
        self.random = rng
        self.dtype = dtype
        self.nodes = Graph()
        self.tracer = GraphAppendingTracer(self.nodes)
        self.inputs: list[Callable[[torch.Generator, torch.dtype], torch.Tensor]] = []
        self.rows, self.lanes = rng.choice([(32, 64), (32, 64), (16, 96), (8, 128), (64, 48)])
        self.live = [self.input((self.rows, self.lanes)) for _ in range(rng.randint(1, 3))]

    def input(self, shape: tuple[int, ...], scale: float = 1.0, shift: float = 0.0) -> Proxy:
        """A new float input of normal values."""

        def make(generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
            return (torch.randn(shape, generator=generator) * scale + shift).to(dtype)

        self.inputs.append(make)
        # Placeholders stand before the first computation.
        first_call = next((n for n in self.nodes.nodes if n.op != "placeholder"), None)
        with self.nodes.inserting_before(first_call) if first_call is not None else nullcontext():
            return Proxy(self.nodes.placeholder(f"x{len(self.inputs)}"), self.tracer)

    def pick(self) -> Proxy:
        """A live value, mostly a recent one, so that chains grow deep."""
        if self.random.random() < 0.6:
            return self.live[-1]
        return self.random.choice(self.live)

    def pick_two(self) -> tuple[Proxy, Proxy]:
        """Two different values, so that no difference is zero and no maximum is the value itself."""
        first = self.pick()
        others = [v for v in self.live if v is not first]
        return first, self.random.choice(others) if others else self.input((self.rows, self.lanes))

    def step(self) -> None:
        grow = self.random.choices([g for g, _ in MENU], [w for _, w in MENU])[0]
        self.live.append(grow(self))

    def finish(self) -> GraphModule:
        last = self.live[-1]
        others = [v for v in self.live[:-1] if v.node.op != "placeholder"]
        out = [last, *self.random.sample(others, min(len(others), self.random.choice([0, 0, 1, 2])))]
        if self.random.random() < 0.2:
            out.append(torch.sum(last, 1))
        if self.random.random() < 0.1:
            out.append(torch.gt(last, 0.25))
        if self.random.random() < 0.1:
            out.append(torch.argmax(last, 1))
        self.nodes.output(tuple(v.node for v in out))
        self.nodes.eliminate_dead_code()
        return GraphModule(torch.nn.Module(), self.nodes)


def _unary(*functions: Callable[..., Any]) -> Grow:
    return lambda g: g.random.choice(functions)(g.pick())


def _divide(g: Grower) -> Any:
    bottom = torch.abs(g.pick()) + g.random.choice([0.5, 1.0])
    return torch.div(g.pick(), bottom)


def _standardise(g: Grower) -> Any:
    value = g.pick()
    return value * torch.rsqrt(torch.var(value, g.random.choice([0, 1]), keepdim=True, correction=1) + 0.1)


def _softmax(g: Grower) -> Any:
    function = g.random.choice([F.softmax, F.softmax, F.log_softmax])
    return function(g.pick(), dim=-1) * (float(g.lanes) / 4 if function is F.softmax else 0.2)


def _layer_norm(g: Grower) -> Any:
    weight, bias = g.input((g.lanes,), 0.1, 1.0), g.input((g.lanes,), 0.1)
    return F.layer_norm(g.pick(), (g.lanes,), weight, bias, 1e-5)


def _gram(g: Grower) -> Any:
    value = g.pick()
    scores = torch.matmul(value, torch.t(value)) * (1.0 / g.lanes)
    return torch.matmul(F.softmax(scores, dim=-1), value)


def _masked(g: Grower) -> Any:
    kept = g.pick() > 0.0
    return torch.where(kept, g.pick(), g.pick() * 0.1)


def _moved(g: Grower) -> Any:
    value = g.pick()
    return torch.roll(value, 3, 1) if g.random.random() < 0.5 else torch.flip(value, [0])


def _wide(g: Grower) -> Any:
    """A piece computed in float32 whatever the dtype, as norms in language models are."""
    value = g.pick().to(torch.float32)
    power = torch.mean(torch.mul(value, value), -1, True)
    return torch.mul(value, torch.rsqrt(power + 1e-5)).to(g.dtype)


MENU: list[tuple[Grow, float]] = [
    (_unary(F.relu, F.silu, torch.tanh, torch.sigmoid, torch.sin, torch.cos, torch.erf, F.softplus), 4),
    (lambda g: F.gelu(g.pick(), approximate=g.random.choice(["none", "none", "tanh"])), 1.5),
    (lambda g: g.random.choice([torch.add, torch.sub])(*g.pick_two()) * 0.7, 2),
    (lambda g: torch.mul(g.pick(), torch.tanh(g.pick())), 2),
    (_divide, 1),
    (lambda g: g.random.choice([torch.maximum, torch.minimum])(*g.pick_two()), 1),
    (lambda g: g.pick() * g.random.choice([0.5, 1.1, -0.9]) + g.input((g.lanes,), 0.3), 1),
    (lambda g: torch.exp(-torch.abs(g.pick())), 1),
    (lambda g: torch.rsqrt(torch.mul(value := g.pick(), value) + 1.0), 1),
    (lambda g: torch.log1p(torch.abs(g.pick())), 1),
    (lambda g: torch.sub(value := g.pick(), torch.mean(value, g.random.choice([0, 1]), True)), 1.5),
    (_standardise, 1.5),
    (_softmax, 1.5),
    (_layer_norm, 1.5),
    (lambda g: F.linear(g.pick(), g.input((g.lanes, g.lanes), g.lanes**-0.5), g.input((g.lanes,), 0.1)), 1.5),
    (_gram, 0.5),
    (lambda g: torch.add(value := g.pick(), torch.sum(value, 1, True) * (1.0 / g.lanes)), 1),
    (lambda g: torch.cumsum(g.pick(), 1) * g.lanes**-0.5, 1),
    (lambda g: torch.div(value := g.pick(), torch.amax(torch.abs(value), 1, True) + 0.5), 0.7),
    (lambda g: torch.sub(value := g.pick(), torch.logsumexp(value, 1, True)), 0.7),
    (_masked, 0.7),
    (_moved, 0.7),
    (_wide, 1),
]
"""What a step may add and how often: norms, reductions and products are as frequent as in models."""


SEEDS = range(2000, 2020)
"""The healthy graphs of a calibration: none of those that limits were chosen or reported on."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

UNCALIBRATED = Calibration("none", "", {})
"""Keeps an earlier calibration from widening the limits of the one being measured."""

Listener = Callable[[HealthyGraph, Verdict], None]


def calibrate(
    device: str = "cpu",
    dtypes: Sequence[torch.dtype] = DTYPES,
    seeds: Iterable[int] = SEEDS,
    backend: str | Callable[..., Any] = "inductor",
    on_graph: Listener | None = None,
) -> Calibration:
    """Compile and judge healthy graphs; pass the result to `save_calibration` to make `judge` use it.

    Example: `save_calibration(calibrate("cuda"))`. A graph takes some seconds to compile.
    """
    measured = {}
    chosen = list(seeds)
    for dtype in dtypes:
        verdicts = []
        for seed in chosen:
            case = healthy_graph(seed, dtype, device)
            verdict = judge_compiled(case, backend)
            verdicts.append(verdict)
            if on_graph is not None:
                on_graph(case, verdict)
        measured[f"{device}/{str(dtype).removeprefix('torch.')}"] = _quantiles(verdicts)
    return Calibration(machine_name(), torch.__version__, measured)


def judge_compiled(case: HealthyGraph, backend: str | Callable[..., Any] = "inductor") -> Verdict:
    """Compile a healthy graph with a backend and judge it with the shipped limits."""
    torch.compiler.reset()
    compiled = torch.compile(case.graph, backend=backend)
    return judge(case.graph, case.inputs, compiled, repeat=False, calibration=UNCALIBRATED)


def _quantiles(verdicts: list[Verdict]) -> Quantiles:
    found = [leaf for verdict in verdicts for leaf in verdict.leaves if leaf.z is not None]
    z = torch.tensor([leaf.z for leaf in found] or [0.0], dtype=torch.float64)
    eager = torch.tensor([leaf.z_eager for leaf in found] or [0.0], dtype=torch.float64)
    return Quantiles(
        graphs=len(verdicts),
        false_alarms=sum(verdict.diverged for verdict in verdicts),
        z_median=float(z.median()),
        z_99=float(torch.quantile(z, 0.99)),
        z_max=float(z.max()),
        eager_z_max=float(eager.max()),
    )


def main(device: str, graphs: int, keep: bool) -> None:
    """Measures `graphs` healthy graphs per dtype, and keeps what was found only when all of it is there."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as lines:
        os.dup2(2, 1)
        done = 0

        def say(document: dict[str, Any]) -> None:
            lines.write(json.dumps(document) + "\n")
            lines.flush()

        def tell(_case: object, _verdict: object) -> None:
            nonlocal done
            done += 1
            say({"done": done, "total": graphs * len(DTYPES)})

        found = calibrate(device, seeds=range(SEEDS.start, SEEDS.start + graphs), on_graph=tell)
        path = save_calibration(found) if keep else None
        say({**found.to_json(), "path": str(path) if path else None})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "keep")
