"""Judge one float leaf: is the compiled value further from the truth than rounding noise explains?

The idea: scale every error by the noise measured at its element, then ask four questions, each against what
noisy runs and eager itself show: one element far out, all elements shifted or scaled together, one row or lane
shifted, all elements too noisy. One clear yes is enough.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from torchsleuth.torch_core.compare.compat.close import unravel
from torchsleuth.torch_core.compare.reference.chunks import pieces
from torchsleuth.torch_core.compare.verdict.evidence import AMPLIFICATION, Leaf
from torchsleuth.torch_core.compare.verdict.patterns import Errors, whitened, worst_lane
from torchsleuth.torch_core.compare.verdict.patterns import bias as bias_of
from torchsleuth.torch_core.compare.verdict.spread import AMPLIFIED, EQUIVALENT, REVERSED, as_real
from torchsleuth.torch_core.compare.verdict.verdict import (
    DIVERGED,
    EAGER_SUSPECT,
    INCONCLUSIVE,
    WITHIN_NOISE,
    LeafVerdict,
)
from torchsleuth.torch_core.compare.verdict.verdict_limits import VerdictLimits

ROW_SHARE = 0.5
"""An element's noise is at least this share of its row's: eight runs underrate one element in hundreds by half."""

LEAST_ROW = 16
"""Elements from which on a row's mean is taken for its own."""

EAGER_SHARE = 3.0
"""Where eager itself is off by more than this many noise units, its error is the noise there."""

JUMP = 3.0
"""Stronger noise that grows this many times more than it should has crossed a decision."""

ILL_CONDITIONED = 0.1
"""Noise above this share of the values leaves nothing to judge."""

SUSPECT = 1.5
"""Eager is called suspect only this far beyond the limit: it is the program that everyone runs."""

MOST_ULPS = 1e6
"""More ulps than this say that the value itself is next to nothing, not how wrong it is."""

UNREFERENCED = 3.0
"""With nodes that had no float64 kernel behind it, a leaf diverges only this many times beyond the limits."""


def judge_floats(leaf: Leaf, compiled: torch.Tensor, limits: VerdictLimits) -> LeafVerdict:
    """The verdict on a float or complex leaf of matching shape and dtype.

    Example: `judge_floats(evidence.leaves[0], compiled[0], limits_for(torch.float32, n))`.
    """
    dtype = leaf.eager.dtype
    draft = LeafVerdict(
        leaf.path,
        WITHIN_NOISE,
        "",
        dtype=str(dtype).removeprefix("torch."),
        shape=tuple(compiled.shape),
        random=leaf.random,
        fallbacks=leaf.fallbacks,
    )
    if compiled.numel() == 0:
        return replace(draft, sentence="empty")
    strict = _not_finite(leaf, compiled, draft)
    if strict is not None:
        return strict
    errors = _errors(leaf, compiled)
    if not bool(errors.usable.any()):
        return replace(
            draft,
            kind=INCONCLUSIVE,
            sentence="the float64 reference is not finite anywhere",
            rule="reference",
        )
    draft = _numbers(draft, errors, compiled, leaf, limits)
    return _decide(draft, errors, limits)


def _errors(leaf: Leaf, compiled: torch.Tensor) -> Errors:
    # A leaf may be most of the program's memory: one copy of it at a time, each used up in place.
    truth = as_real(leaf.truth)
    others = leaf.spread.reach(EQUIVALENT)
    usual = _noise(leaf, truth)
    # A decision that moves a row in usual runs hides one that only stronger noise takes: told apart by element.
    decided = _with_jumps(leaf, usual, usual if others is None else _noise(leaf, truth, neighbours=False))
    noise = _widen_at_jumps(decided, decided, others, 1.0)
    off = as_real(compiled).to(truth.device) - truth
    eager_off = as_real(leaf.eager).to(truth.device) - truth
    usable = torch.isfinite(off)
    eager_noise = eager_off.abs().div_(EAGER_SHARE)
    if not math.isfinite(float(eager_noise.sum())):
        eager_noise.nan_to_num_(0.0, 0.0, 0.0)
    samples = tuple(leaf.spread.samples)
    widest = torch.maximum(noise, eager_noise, out=eager_noise)
    # A mean over errors that a decision took part in says nothing: noisy runs rarely take the same ones.
    steady = usable if decided is usual else usable & (decided == usual)
    return Errors(truth, widest, noise, off, eager_off, samples, usable, steady)


def _noise(leaf: Leaf, truth: torch.Tensor, neighbours: bool = True) -> torch.Tensor:
    """What rounding does to each element, as the noisy runs show it, and never less than half a step of the dtype."""
    spread = leaf.spread
    square = torch.zeros_like(truth) if spread.square is None else spread.square.to(truth.dtype)
    if not math.isfinite(float(square.sum())):
        square.nan_to_num_(0.0, 0.0, 0.0)
    noise = (_with_neighbours(square) if neighbours else square.clone()).sqrt_()
    del square
    # Half a step of zero is no float64 any more.
    least = ulp(truth, leaf.eager.dtype).mul_(0.5).clamp_min_(torch.finfo(torch.float64).tiny)
    return torch.maximum(noise, least, out=noise)


def _with_jumps(leaf: Leaf, noise: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """The noise, but where a decision that may fall either way moves an element further than its own."""
    noise = _widen_at_jumps(noise, own, leaf.spread.reach(AMPLIFIED), JUMP * AMPLIFICATION)
    return _widen_at_jumps(noise, own, leaf.spread.reach(REVERSED), JUMP)


def _with_neighbours(square: torch.Tensor) -> torch.Tensor:
    """Squared errors, none of them far below the mean of its row."""
    row = _row_dims(square.shape)
    if not row:
        return square.clone()
    return torch.maximum(square, square.mean(row, keepdim=True) * ROW_SHARE**2)


def _row_dims(shape: torch.Size) -> list[int]:
    """The last dimensions, as many as make a row long enough: three taps of a kernel say little about each other."""
    row, size = [], 1
    for dim in reversed(range(len(shape))):
        if size >= LEAST_ROW:
            break
        if shape[dim] > 1:
            row.append(dim)
            size *= shape[dim]
    return row


def ulp(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The distance between neighbouring floats of a dtype at each value: `ulp(torch.ones(2).double(), torch.half)`."""
    info = torch.finfo(dtype)
    found = torch.empty_like(value)
    for piece, steps in pieces(value, found):
        exponent = torch.frexp(piece.abs().clamp_min_(info.smallest_normal))[1] - 1
        steps.copy_(torch.ldexp(torch.full_like(piece, info.eps), exponent))
    return found


def _widen_at_jumps(
    noise: torch.Tensor, own: torch.Tensor, reach: torch.Tensor | None, times: float
) -> torch.Tensor:
    """The noise, but where a run went `times` further than an element's own: there a decision was crossed."""
    if reach is None:
        return noise
    # Where several decisions change at once, their effects may cancel in one element of a row.
    reach = _with_neighbours(reach.to(noise.dtype).square()).sqrt_()
    return torch.where((reach > times * own) & (reach > noise), reach, noise)


def _not_finite(leaf: Leaf, compiled: torch.Tensor, draft: LeafVerdict) -> LeafVerdict | None:
    """The rules for NaN and infinity; `None` when every non-finite value is explained."""
    result = as_real(compiled).to(leaf.truth.device)
    eager, truth = (as_real(v).to(leaf.truth.device) for v in (leaf.eager, leaf.truth))
    finite_result, finite_eager, finite_truth = (torch.isfinite(v) for v in (result, eager, truth))
    if bool(finite_result.all()) and bool(finite_truth.all()) and bool(finite_eager.all()):
        return None
    biggest = torch.finfo(leaf.eager.dtype).max
    may_overflow = truth.abs() > biggest / 2
    made = ~finite_result & finite_eager & finite_truth & ~may_overflow
    some = leaf.spread.ever_finite
    stable = torch.ones_like(finite_truth) if some is None else ~some
    lost = finite_result & ~finite_eager & ~finite_truth & stable
    kinds = [torch.nan_to_num(v, nan=2.0, posinf=1.0, neginf=-1.0) for v in (result, eager, truth)]
    other = ~finite_result & ~finite_eager & ~finite_truth & stable
    other &= (kinds[0] != kinds[1]) & (kinds[0] != kinds[2]) & (kinds[1] == kinds[2])
    for mask, rule, text in (
        (made, "made non-finite", "is {c} where eager ({e}) and float64 ({t}) are finite"),
        (lost, "lost non-finite", "is {c} where eager and float64 agree on {t}"),
        (other, "other non-finite", "is {c} where eager and float64 agree on {t}"),
    ):
        if bool(mask.any()):
            return _point(draft, mask, result, eager, truth, rule, text)
    if bool((~finite_eager & finite_truth & ~finite_result & ~may_overflow).any()):
        text = (
            "eager and compiled are both not finite where float64 is: the program overflows in this precision"
        )
        return replace(draft, kind=EAGER_SUSPECT, sentence=text, rule="overflow")
    return None


def _point(
    draft: LeafVerdict,
    mask: torch.Tensor,
    result: torch.Tensor,
    eager: torch.Tensor,
    truth: torch.Tensor,
    rule: str,
    text: str,
) -> LeafVerdict:
    where = int(mask.reshape(-1).to(torch.uint8).argmax())
    c, e, t = (float(v.reshape(-1)[where]) for v in (result, eager, truth))
    index = unravel(where, tuple(mask.shape))
    count = int(mask.sum())
    sentence = (
        f"element {list(index)} "
        + text.format(c=c, e=f"{e:.6g}", t=t)
        + f" ({count} of {mask.numel()} elements)"
    )
    return replace(
        draft,
        kind=DIVERGED,
        sentence=sentence,
        rule=rule,
        index=index,
        compiled=c,
        eager=e,
        truth=t,
        share=count / mask.numel(),
    )


def _numbers(
    draft: LeafVerdict, errors: Errors, compiled: torch.Tensor, leaf: Leaf, limits: VerdictLimits
) -> LeafVerdict:
    far = errors.compiled.abs().div_(errors.noise).masked_fill_(~errors.usable, 0.0)
    flat = far.reshape(-1)
    where = int(flat.argmax())
    at = (v.reshape(-1)[where] for v in (errors.truth, errors.compiled, errors.eager))
    truth, off, eager_off = (float(v) for v in at)
    step = float(ulp(errors.truth.reshape(-1)[where], leaf.eager.dtype))
    index = unravel(where, tuple(far.shape))
    z, share = float(flat[where]), int((flat > limits.z).sum()) / flat.numel()
    del far, flat
    size = _rms(torch.where(errors.usable, errors.compiled, 0.0))
    finite_eager = errors.eager.nan_to_num(0.0, 0.0, 0.0)
    eager_size = _rms(finite_eager)
    return replace(
        draft,
        index=index[:-1] if compiled.is_complex() else index,
        truth=truth,
        compiled=truth + off,
        eager=truth + eager_off,
        ulps=abs(off) / step,
        z=z,
        z_eager=float(finite_eager.abs_().div_(errors.bare).max()),
        limit=limits.z,
        share=share,
        rmse_ratio=size / eager_size if eager_size else (math.inf if size else 1.0),
        closer_than_eager=size < eager_size,
    )


def _decide(draft: LeafVerdict, errors: Errors, limits: VerdictLimits) -> LeafVerdict:
    z, z_eager = draft.z or 0.0, draft.z_eager or 0.0
    stretch = UNREFERENCED if draft.fallbacks else 1.0
    rule, detail, bias = _broken_rule(draft, errors, limits, stretch)
    draft = replace(draft, bias=bias)
    if rule:
        return replace(draft, kind=DIVERGED, rule=rule, sentence=detail)
    if stretch > 1.0 and z > limits.z and z > limits.guard * z_eager:
        text = f"{_distance(draft)}, but {', '.join(draft.fallbacks)} could not be computed in float64"
        return replace(draft, kind=INCONCLUSIVE, rule="no reference", sentence=text)
    noise, size = _rms(errors.noise), _rms(errors.truth.nan_to_num(0.0, 0.0, 0.0))
    if noise > ILL_CONDITIONED * size and z > 1.0:
        text = f"rounding noise is {noise / max(size, 1e-300):.0%} of the values: nothing can be told at this precision"
        return replace(draft, kind=INCONCLUSIVE, rule="ill-conditioned", sentence=text)
    if z_eager > SUSPECT * limits.z and z <= z_eager:
        text = (
            f"eager itself is {z_eager:.1f} noise units from float64, compiled {z:.1f}: look at the program"
        )
        return replace(draft, kind=EAGER_SUSPECT, rule="eager", sentence=text)
    return replace(draft, sentence=_harmless(draft))


def _broken_rule(
    draft: LeafVerdict, errors: Errors, limits: VerdictLimits, stretch: float
) -> tuple[str, str, float | None]:
    assert draft.z is not None and draft.z_eager is not None
    if draft.z > limits.z * stretch and draft.z > limits.guard * draft.z_eager:
        return "element", _distance(draft), None
    sample = whitened(errors)
    if sample is None:
        return "", "", None
    noisy = torch.linalg.vector_norm(sample.noisy, dim=1).max()
    rmse, eager_rmse = (float(torch.linalg.vector_norm(v) / noisy) for v in (sample.compiled, sample.eager))
    if rmse > limits.rmse * stretch and rmse > limits.guard * eager_rmse:
        return (
            "spread",
            f"errors are {rmse:.1f} times the rounding noise overall (eager: {eager_rmse:.1f})",
            None,
        )
    size, significance, eager_significance, name = bias_of(sample)
    guard = 2.0
    if (
        significance > limits.bias_z * stretch
        and size > limits.bias_size
        and significance > guard * eager_significance
    ):
        text = f"all elements are {name} together by {size:.2f} noise units"
        return (
            "bias",
            f"{text}, {significance:.0f} times what rounding does (eager: {eager_significance:.1f})",
            size,
        )
    lane = worst_lane(sample)
    if (
        lane is not None
        and lane[0] > limits.lane_z * stretch
        and lane[1] > limits.lane_size
        and lane[0] > guard * lane[2]
    ):
        text = f"index {lane[4]} of dimension {lane[3]} is off by {lane[1]:.1f} noise units on average"
        return "lane", f"{text}, {lane[0]:.0f} times what rounding does (eager: {lane[2]:.1f})", size
    return "", "", size


def _rms(values: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(values)) / math.sqrt(max(values.numel(), 1))


def _distance(draft: LeafVerdict) -> str:
    ulps = (
        f"{draft.ulps or 0.0:.1f} ulps"
        if (draft.ulps or 0.0) < MOST_ULPS
        else "what is left of larger numbers"
    )
    return (
        f"element {list(draft.index or ())} is {draft.compiled:.8g}, "
        f"float64 says {draft.truth:.8g}, eager {draft.eager:.8g}: "
        f"{draft.z:.1f} times the rounding noise ({ulps}; eager {draft.z_eager:.1f}), "
        f"{draft.share:.2%} of elements beyond {draft.limit:.1f}"
    )


def _harmless(draft: LeafVerdict) -> str:
    ratio = draft.rmse_ratio if draft.rmse_ratio is not None else 1.0
    if draft.closer_than_eager:
        return f"the compiled result is closer to the truth than eager (error {ratio:.2f} times eager's)"
    return (
        f"within rounding noise: at most {draft.z:.1f} noise units off (limit {draft.limit:.1f}), "
        f"error {ratio:.2f} times eager's"
    )
