"""How far rounding alone may move each result of a graph: the yardstick of every check that is not a full verdict.

A cut-out sum of numbers that cancel is relatively far from eager in any order of addition. The noise runs of a verdict
measure that for the graph itself, on its own inputs; a result counts as wrong well beyond it only. Trials, whole
scripts and small ones all compare by these numbers (`script_runtime.runner` does the comparing).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchsleuth.torch_core.compare.reference.eager import MUTATED
from torchsleuth.torch_core.compare.reference.rng import save_rng
from torchsleuth.torch_core.compare.reference.trees import is_inexact
from torchsleuth.torch_core.compare.verdict.evidence import gather
from torchsleuth.torch_core.compare.verdict.leaf import Leaf, largest

# Noisy runs of each candidate: the largest of four is a fair scale, and a search asks often.
RUNS = 4
# Beyond the noise: a verdict calls 10 times the noise wrong; one number for a whole output is coarser.
TIMES = 16.0


@dataclass(frozen=True)
class Tolerances:
    """The tolerance of each output and changed input by path, and one for all results that are no whole numbers."""

    by_path: dict[str, float] = field(default_factory=dict)
    distance: float | None = None


def measured_tolerances(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Tolerances:
    """The tolerances of a graph on these inputs; none where they cannot be measured.

    >>> measured_tolerances(gm, [torch.ones(2)]).distance < 1e-5
    True
    """
    try:
        found = gather(graph, list(inputs), runs=RUNS, start=save_rng())
    except Exception:  # an operator without float64, or too little memory: the script's own rule must do
        return Tolerances()
    numbers = {leaf.path.removesuffix(MUTATED): (leaf, _tolerance(leaf)) for leaf in found.leaves}
    known = {path: (leaf, number) for path, (leaf, number) in numbers.items() if number is not None}
    distances = [number for leaf, number in known.values() if is_inexact(leaf.eager)]
    return Tolerances({path: number for path, (_, number) in known.items()}, max(distances, default=None))


def _tolerance(leaf: Leaf) -> float | None:
    eager = leaf.eager
    if not isinstance(eager, torch.Tensor) or not isinstance(leaf.truth, torch.Tensor):
        return None
    if not is_inexact(eager):
        # Decisions that noise flips: how many elements differ from the truth in the worst run.
        flipped = int((leaf.truth.to(eager.device) != eager).sum()) if leaf.truth.shape == eager.shape else 0
        return 2.0 * max(leaf.spread.largest, flipped)
    own = largest(eager.to(leaf.truth.dtype) - leaf.truth)
    step = torch.finfo(eager.dtype).eps * largest(leaf.truth)
    return TIMES * max(own, leaf.spread.largest, step)
