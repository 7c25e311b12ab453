"""Measure on this machine how far healthy compiled graphs lie from the truth, and how often `judge` cries wolf.

The idea: the shipped healthy graphs, compiled here, show this machine's math library and accelerator; the
largest distance seen raises the limits that `judge` uses from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from torchsleuth.torch_core.compare.verdict.calibration import Calibration, Quantiles, machine_name
from torchsleuth.torch_core.compare.verdict.healthy import HealthyGraph, healthy_graph
from torchsleuth.torch_core.compare.verdict.judge import judge
from torchsleuth.torch_core.compare.verdict.verdict import Verdict

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
