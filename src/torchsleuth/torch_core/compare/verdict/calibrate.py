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
import operator
import os
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.nn import functional as F

from torchsleuth.torch_core.compare.verdict.judge import judge
from torchsleuth.torch_core.compare.verdict.limits import (
    Calibration,
    Quantiles,
    machine_name,
    save_calibration,
)
from torchsleuth.torch_core.compare.verdict.verdict import Verdict

Grow = Callable[["Grower"], Node]


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
    grower.start()
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
        self.live: list[Node] = []
        self.inputs: list[Callable[[torch.Generator, torch.dtype], torch.Tensor]] = []
        self.rows, self.lanes = rng.choice([(32, 64), (32, 64), (16, 96), (8, 128), (64, 48)])

    def start(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            self.live.append(self.input((self.rows, self.lanes)))

    def input(self, shape: tuple[int, ...], scale: float = 1.0, shift: float = 0.0) -> Node:
        """A new float input of normal values."""

        def make(generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
            return (torch.randn(shape, generator=generator) * scale + shift).to(dtype)

        self.inputs.append(make)
        # Placeholders stand before the first computation.
        first_call = next((n for n in self.nodes.nodes if n.op != "placeholder"), None)
        if first_call is None:
            return self.nodes.placeholder(f"x{len(self.inputs)}")
        with self.nodes.inserting_before(first_call):
            return self.nodes.placeholder(f"x{len(self.inputs)}")

    def call(self, target: Callable, *args: object, **kwargs: object) -> Node:
        return self.nodes.call_function(target, args, kwargs)

    def pick(self) -> Node:
        """A live value, mostly a recent one, so that chains grow deep."""
        if self.random.random() < 0.6:
            return self.live[-1]
        return self.random.choice(self.live)

    def pick_two(self) -> tuple[Node, Node]:
        """Two different values, so that no difference is zero and no maximum is the value itself."""
        first = self.pick()
        others = [n for n in self.live if n is not first]
        return first, self.random.choice(others) if others else self.input((self.rows, self.lanes))

    def step(self) -> None:
        grow = self.random.choices([g for g, _ in MENU], [w for _, w in MENU])[0]
        self.live.append(grow(self))

    def finish(self) -> GraphModule:
        out = [self.live[-1]]
        others = [n for n in self.live[:-1] if n.op != "placeholder"]
        out += self.random.sample(others, min(len(others), self.random.choice([0, 0, 1, 2])))
        if self.random.random() < 0.2:
            out.append(self.call(torch.sum, self.live[-1], 1))
        if self.random.random() < 0.1:
            out.append(self.call(torch.gt, self.live[-1], 0.25))
        if self.random.random() < 0.1:
            out.append(self.call(torch.argmax, self.live[-1], 1))
        self.nodes.output(tuple(out))
        self.nodes.eliminate_dead_code()
        return GraphModule(torch.nn.Module(), self.nodes)


def _unary(*targets: Callable) -> Grow:
    return lambda g: g.call(g.random.choice(targets), g.pick())


def _grow_add(g: Grower) -> Node:
    return g.call(operator.mul, g.call(g.random.choice([torch.add, torch.sub]), *g.pick_two()), 0.7)


def _grow_mul(g: Grower) -> Node:
    return g.call(torch.mul, g.pick(), g.call(torch.tanh, g.pick()))


def _grow_divide(g: Grower) -> Node:
    bottom = g.call(operator.add, g.call(torch.abs, g.pick()), g.random.choice([0.5, 1.0]))
    return g.call(torch.div, g.pick(), bottom)


def _grow_select(g: Grower) -> Node:
    return g.call(g.random.choice([torch.maximum, torch.minimum]), *g.pick_two())


def _grow_affine(g: Grower) -> Node:
    scaled = g.call(operator.mul, g.pick(), g.random.choice([0.5, 1.1, -0.9]))
    return g.call(operator.add, scaled, g.input((g.lanes,), 0.3))


def _grow_exp(g: Grower) -> Node:
    return g.call(torch.exp, g.call(operator.neg, g.call(torch.abs, g.pick())))


def _grow_root(g: Grower) -> Node:
    value = g.pick()
    return g.call(torch.rsqrt, g.call(operator.add, g.call(torch.mul, value, value), 1.0))


def _grow_log(g: Grower) -> Node:
    return g.call(torch.log1p, g.call(torch.abs, g.pick()))


def _grow_gelu(g: Grower) -> Node:
    return g.call(F.gelu, g.pick(), approximate=g.random.choice(["none", "none", "tanh"]))


def _grow_center(g: Grower) -> Node:
    value = g.pick()
    return g.call(torch.sub, value, g.call(torch.mean, value, g.random.choice([0, 1]), True))


def _grow_standardise(g: Grower) -> Node:
    value = g.pick()
    spread = g.call(torch.var, value, g.random.choice([0, 1]), keepdim=True, correction=1)
    return g.call(torch.mul, value, g.call(torch.rsqrt, g.call(operator.add, spread, 0.1)))


def _grow_softmax(g: Grower) -> Node:
    target = g.random.choice([F.softmax, F.softmax, F.log_softmax])
    scaled = g.call(target, g.pick(), dim=-1)
    return g.call(operator.mul, scaled, float(g.lanes) / 4 if target is F.softmax else 0.2)


def _grow_layer_norm(g: Grower) -> Node:
    weight, bias = g.input((g.lanes,), 0.1, 1.0), g.input((g.lanes,), 0.1)
    return g.call(F.layer_norm, g.pick(), (g.lanes,), weight, bias, 1e-5)


def _grow_linear(g: Grower) -> Node:
    return g.call(F.linear, g.pick(), g.input((g.lanes, g.lanes), g.lanes**-0.5), g.input((g.lanes,), 0.1))


def _grow_gram(g: Grower) -> Node:
    value = g.pick()
    scores = g.call(operator.mul, g.call(torch.matmul, value, g.call(torch.t, value)), 1.0 / g.lanes)
    return g.call(torch.matmul, g.call(F.softmax, scores, dim=-1), value)


def _grow_sum(g: Grower) -> Node:
    value = g.pick()
    total = g.call(torch.sum, value, 1, True)
    return g.call(torch.add, value, g.call(operator.mul, total, 1.0 / g.lanes))


def _grow_cumsum(g: Grower) -> Node:
    return g.call(operator.mul, g.call(torch.cumsum, g.pick(), 1), g.lanes**-0.5)


def _grow_amax(g: Grower) -> Node:
    value = g.pick()
    top = g.call(operator.add, g.call(torch.amax, g.call(torch.abs, value), 1, True), 0.5)
    return g.call(torch.div, value, top)


def _grow_logsumexp(g: Grower) -> Node:
    value = g.pick()
    return g.call(torch.sub, value, g.call(torch.logsumexp, value, 1, True))


def _grow_mask(g: Grower) -> Node:
    kept = g.call(operator.gt, g.pick(), 0.0)
    return g.call(torch.where, kept, g.pick(), g.call(operator.mul, g.pick(), 0.1))


def _grow_move(g: Grower) -> Node:
    value = g.pick()
    if g.random.random() < 0.5:
        return g.call(torch.roll, value, 3, 1)
    return g.call(torch.flip, value, [0])


def _grow_wide(g: Grower) -> Node:
    """A piece computed in float32 whatever the dtype, as norms in language models are."""
    value = g.call(torch.Tensor.to, g.pick(), torch.float32)
    power = g.call(torch.mean, g.call(torch.mul, value, value), -1, True)
    scaled = g.call(torch.mul, value, g.call(torch.rsqrt, g.call(operator.add, power, 1e-5)))
    return g.call(torch.Tensor.to, scaled, g.dtype)


MENU: list[tuple[Grow, float]] = [
    (_unary(F.relu, F.silu, torch.tanh, torch.sigmoid, torch.sin, torch.cos, torch.erf, F.softplus), 4),
    (_grow_gelu, 1.5),
    (_grow_add, 2),
    (_grow_mul, 2),
    (_grow_divide, 1),
    (_grow_select, 1),
    (_grow_affine, 1),
    (_grow_exp, 1),
    (_grow_root, 1),
    (_grow_log, 1),
    (_grow_center, 1.5),
    (_grow_standardise, 1.5),
    (_grow_softmax, 1.5),
    (_grow_layer_norm, 1.5),
    (_grow_linear, 1.5),
    (_grow_gram, 0.5),
    (_grow_sum, 1),
    (_grow_cumsum, 1),
    (_grow_amax, 0.7),
    (_grow_logsumexp, 0.7),
    (_grow_mask, 0.7),
    (_grow_move, 0.7),
    (_grow_wide, 1),
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
