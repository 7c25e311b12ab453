"""How far rounding alone may move each output of a candidate, so that a search never chases noise.

A cut-out sum of numbers that cancel is relatively far from eager in any order of addition. The noise runs of
`compare/` measure that for the candidate itself, on its own inputs; a result counts as wrong well beyond it only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from torchsleuth.compare.reference.rng import save_rng
from torchsleuth.compare.verdict.evidence import MUTATED, Leaf, gather
from torchsleuth.minify.search.contract import State
from torchsleuth.minify.states import real_inputs
from torchsleuth.script_runtime.relaxed import with_reshapes

# Noisy runs of each candidate: the largest of four is a fair scale, and a search asks often.
RUNS = 4
# Beyond the noise: the verdict of compare/ calls 10 times the noise wrong; one number for a whole output is coarser.
TIMES = 16.0


def tolerances_of(state: State) -> dict[str, float]:
    """The tolerance of each output and changed input by path; empty where it cannot be measured.

    >>> tolerances_of(state)
    {'outputs[0]': 3.8e-06}
    """
    return dict(_measured(state, of_numbers=True))


def distance_of(state: State) -> float | None:
    """One tolerance for all results that are no whole numbers; None where there is none.

    >>> distance_of(state)
    3.8e-06
    """
    return max((number for _, number in _measured(state, of_numbers=False)), default=None)


def _measured(state: State, of_numbers: bool) -> Iterator[tuple[str, float]]:
    """Paths and tolerances: distances, and `of_numbers` also how many whole numbers may differ."""
    try:
        found = gather(with_reshapes(state.graph), real_inputs(state), runs=RUNS, start=save_rng())
    except Exception:  # an operator without float64, or too little memory: the script's own rule must do
        return
    for leaf in found.leaves:
        number = _tolerance(leaf) if of_numbers or _has_distance(leaf.eager) else None
        if number is not None:
            yield leaf.path.removesuffix(MUTATED), number


def _has_distance(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _tolerance(leaf: Leaf) -> float | None:
    eager = leaf.eager
    if not isinstance(eager, torch.Tensor) or not isinstance(leaf.truth, torch.Tensor):
        return None
    if not _has_distance(eager):
        # Decisions that noise flips: how many elements differ from the truth in the worst run.
        runs = [
            r for r in (*leaf.noisy, *leaf.amplified, *leaf.other_decisions) if isinstance(r, torch.Tensor)
        ]
        return 2.0 * max((int((run.to(eager.dtype) != eager).sum()) for run in runs), default=0)
    own = _largest(eager.to(leaf.truth.dtype) - leaf.truth)
    noise = max((_largest(run) for run in (*leaf.noisy, *leaf.amplified, *leaf.other_decisions)), default=0.0)
    step = torch.finfo(eager.dtype).eps * _largest(leaf.truth)
    return TIMES * max(own, noise, step)


def _largest(values: Any) -> float:
    sizes = values.detach().abs()
    finite = sizes[torch.isfinite(sizes)]
    number = float(finite.max()) if finite.numel() else 0.0
    return number if math.isfinite(number) else 0.0
