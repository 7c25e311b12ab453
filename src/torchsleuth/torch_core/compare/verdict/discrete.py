"""Judge one integer or boolean leaf: exact, unless the floats that decided it lie within the noise.

The idea: an element whose value flips when rounding noise is varied was decided by rounding; there eager and
compiled may both be right. This covers comparisons, casts, and ties in sort, top-k and argmax alike.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from torchsleuth.torch_core.compare.compat.close import unravel
from torchsleuth.torch_core.compare.verdict.evidence import Leaf
from torchsleuth.torch_core.compare.verdict.spread import USUAL
from torchsleuth.torch_core.compare.verdict.verdict import DIVERGED, INCONCLUSIVE, WITHIN_NOISE, LeafVerdict

UNDECIDED = 0.5
"""When more than this share of a leaf flips under noise, agreement and disagreement mean nothing."""

UNSEEN = 0.5
"""Per element that one noisy run flips, this many may differ that no run flipped: a dozen runs do not show all."""


def judge_discrete(leaf: Leaf, compiled: torch.Tensor) -> LeafVerdict:
    """The verdict on an integer or boolean leaf of matching shape and dtype.

    Example: `judge_discrete(leaf, compiled).kind` for the output of `x > 0`.
    """
    truth = leaf.truth.to(leaf.eager.device)
    result = compiled.to(leaf.eager.device)
    draft = LeafVerdict(
        leaf.path,
        WITHIN_NOISE,
        "equal to eager",
        dtype=str(compiled.dtype).removeprefix("torch."),
        shape=tuple(compiled.shape),
        random=leaf.random,
        fallbacks=leaf.fallbacks,
    )
    wrong = result != leaf.eager
    if not bool(wrong.any()):
        return replace(draft, share=0.0)
    wrong &= result != truth
    for seen in leaf.spread.flips.values():
        wrong &= ~seen.to(wrong.device)
    if int(wrong.sum()) > UNSEEN * leaf.spread.most_flips:
        return _point(draft, wrong, result, leaf.eager, truth)
    flips = leaf.spread.flips.get(USUAL)
    unstable = 0.0 if flips is None else float(flips.double().mean())
    if unstable > UNDECIDED:
        text = f"{unstable:.0%} of these decisions flip within rounding noise: nothing can be told"
        return replace(draft, kind=INCONCLUSIVE, rule="undecided", sentence=text)
    count = int((result != leaf.eager).sum())
    text = f"{count} of {result.numel()} elements differ from eager, where the deciding floats tie or are within noise"
    return replace(draft, sentence=text, share=count / result.numel(), rule="straddle")


def _point(
    draft: LeafVerdict, wrong: torch.Tensor, result: torch.Tensor, eager: torch.Tensor, truth: torch.Tensor
) -> LeafVerdict:
    where = int(wrong.reshape(-1).to(torch.uint8).argmax())
    index = unravel(where, tuple(wrong.shape))
    c, e, t = (v.reshape(-1)[where].item() for v in (result, eager, truth))
    count = int(wrong.sum())
    sentence = (
        f"element {list(index)} is {c}, eager and float64 say {e} and {t}; no rounding within 8 times the noise "
        f"changes it ({count} of {wrong.numel()} elements)"
    )
    return replace(
        draft,
        kind=DIVERGED,
        sentence=sentence,
        rule="exact",
        index=index,
        compiled=float(c),
        eager=float(e),
        truth=float(t),
        share=count / wrong.numel(),
    )
