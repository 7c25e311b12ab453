"""Judge one tensor: is the compiled value further from the truth than rounding noise explains?

Floats: scale every error by the noise measured at its element, then ask four questions, each against what noisy runs
and eager itself show: one element far out, all elements too noisy, all of them shifted or scaled together, one row or
lane shifted. One clear yes is enough. A mean over many elements has far less noise than one element, and noisy runs
show how much less, so the last two find faults where every element looks innocent.
Integers and booleans: exact, but for an element whose value flips when rounding noise is varied. There rounding
decided, and eager and compiled may both be right: comparisons, casts, and ties in sort, top-k and argmax alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from torchsleuth.torch_core.compare.reference.trees import pieces
from torchsleuth.torch_core.compare.same import unravel
from torchsleuth.torch_core.compare.verdict.leaf import (
    AMPLIFICATION,
    AMPLIFIED,
    EQUIVALENT,
    REVERSED,
    USUAL,
    Leaf,
    as_real,
    thinned,
)
from torchsleuth.torch_core.compare.verdict.limits import VerdictLimits
from torchsleuth.torch_core.compare.verdict.verdict import (
    DIVERGED,
    EAGER_SUSPECT,
    INCONCLUSIVE,
    WITHIN_NOISE,
    LeafVerdict,
)

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

PATTERN_GUARD = 2.0
"""A bias or a lane is wrong only so many times beyond eager's own."""

UNREFERENCED = 3.0
"""With nodes that had no float64 kernel behind it, a leaf diverges only this many times beyond the limits."""


def judge_floats(leaf: Leaf, compiled: torch.Tensor, limits: VerdictLimits) -> LeafVerdict:
    """The verdict on a float or complex leaf of matching shape and dtype.

    Example: `judge_floats(evidence.leaves[0], compiled[0], limits_for(torch.float32, n))`.
    """
    draft = _draft(leaf, compiled)
    if compiled.numel() == 0:
        return replace(draft, sentence="empty")
    strict = _not_finite(leaf, compiled, draft)
    if strict is not None:
        return strict
    errors = _errors(leaf, compiled)
    if not bool(errors.usable.any()):
        text = "the float64 reference is not finite anywhere"
        return replace(draft, kind=INCONCLUSIVE, sentence=text, rule="reference")
    return _decide(_numbers(draft, errors, compiled, leaf, limits), errors, limits)


def _draft(leaf: Leaf, compiled: torch.Tensor) -> LeafVerdict:
    """A harmless verdict, to which what is found is added."""
    dtype, shape = str(compiled.dtype).removeprefix("torch."), tuple(compiled.shape)
    return LeafVerdict(
        leaf.path, WITHIN_NOISE, "", dtype=dtype, shape=shape, random=leaf.random, fallbacks=leaf.fallbacks
    )


def _errors(leaf: Leaf, compiled: torch.Tensor) -> Errors:
    # A leaf may be most of the program's memory: one copy of it at a time, each used up in place.
    truth = as_real(leaf.truth)
    others = leaf.spread.reach(EQUIVALENT)
    usual = _noise(leaf, truth)
    # A decision that moves a row in usual runs hides one that only stronger noise takes: seen element by element.
    own = usual if others is None else _noise(leaf, truth, neighbours=False)
    decided = _widen_at_jumps(usual, own, leaf.spread.reach(AMPLIFIED), JUMP * AMPLIFICATION)
    decided = _widen_at_jumps(decided, own, leaf.spread.reach(REVERSED), JUMP)
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
        (made, "made non-finite", "is {c} where eager ({e:.6g}) and float64 ({t}) are finite"),
        (lost, "lost non-finite", "is {c} where eager and float64 agree on {t}"),
        (other, "other non-finite", "is {c} where eager and float64 agree on {t}"),
    ):
        if bool(mask.any()):
            found = _point(draft, mask, result, eager, truth, rule, text)
            if rule != "made non-finite" or not leaf.overflowing:
                return found
            why = f"`{leaf.overflowing[0]}` comes so near to the largest number of its format that rounding decides"
            return replace(found, kind=INCONCLUSIVE, rule="overflow", sentence=f"{found.sentence}: {why}")
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
    """Names the first element of a mask; `text` has places for compiled (`c`), eager (`e`) and truth (`t`)."""
    where = int(mask.reshape(-1).to(torch.uint8).argmax())
    c, e, t = (v.reshape(-1)[where].item() for v in (result, eager, truth))
    index = unravel(where, tuple(mask.shape))
    count = int(mask.sum())
    distance = text.format(c=c, e=e, t=t)
    return replace(
        draft,
        kind=DIVERGED,
        sentence=f"element {list(index)} {distance} ({count} of {mask.numel()} elements)",
        rule=rule,
        index=index,
        compiled=float(c),
        eager=float(e),
        truth=float(t),
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
        text = f"errors are {rmse:.1f} times the rounding noise overall (eager: {eager_rmse:.1f})"
        return "spread", text, None
    bias = worst_bias(sample)
    for rule, found, least, least_size in (
        ("bias", bias, limits.bias_z, limits.bias_size),
        ("lane", worst_lane(sample), limits.lane_z, limits.lane_size),
    ):
        beyond = found.significance > max(least * stretch, PATTERN_GUARD * found.eager)
        if beyond and found.size > least_size:
            by = f"{found.significance:.0f} times what rounding does (eager: {found.eager:.1f})"
            return rule, f"{found.what}, {by}", bias.size
    return "", "", bias.size


def _rms(values: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(values)) / math.sqrt(max(values.numel(), 1))


MOST_TIMES = 1e5
"""From here on a factor is written with an exponent."""


def _distance(draft: LeafVerdict) -> str:
    ulps, z = draft.ulps or 0.0, draft.z or 0.0
    times = f"{z:.1f}" if z < MOST_TIMES else f"{z:.1e}"
    steps = f"{ulps:.1f} ulps" if ulps < MOST_ULPS else "what is left of larger numbers"
    return (
        f"element {list(draft.index or ())} is {draft.compiled:.8g}, "
        f"float64 says {draft.truth:.8g}, eager {draft.eager:.8g}: "
        f"{times} times the rounding noise ({steps}; eager {draft.z_eager:.1f}), "
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


@dataclass(frozen=True)
class Errors:
    """One leaf in float64: truth, noise scale, and the errors of compiled and eager."""

    truth: torch.Tensor
    noise: torch.Tensor
    bare: torch.Tensor
    compiled: torch.Tensor
    eager: torch.Tensor
    samples: tuple[torch.Tensor, ...]
    """Of each noisy run, the elements at `thinned`."""
    usable: torch.Tensor
    steady: torch.Tensor
    """Those of the usable ones that no decision within rounding of its corner moves."""


@dataclass(frozen=True)
class Sample:
    """Errors over noise for a part of a leaf, flat: compiled, eager, and one row per noisy run."""

    compiled: torch.Tensor
    eager: torch.Tensor
    noisy: torch.Tensor
    truth: torch.Tensor
    shape: tuple[int, ...]


SMALLEST = 64
"""Fewer elements than this have no meaningful mean."""


def whitened(errors: Errors) -> Sample | None:
    """The errors of a leaf over their noise; `None` for a leaf too small to have patterns."""
    truth = errors.truth
    if truth.numel() < SMALLEST or not errors.samples:
        return None
    cut = thinned(truth)
    weight = torch.where(errors.steady[cut], 1.0 / errors.bare[cut], 0.0)
    rows = torch.empty((len(errors.samples) + 3, *weight.shape), dtype=truth.dtype, device=truth.device)
    thin = (errors.compiled[cut], errors.eager[cut], truth[cut], *errors.samples)
    for row, values in zip(rows, thin):
        torch.mul(values, weight, out=row)
    if not math.isfinite(float(rows.sum())):
        rows.nan_to_num_(0.0, 0.0, 0.0)
    flat = rows.view(len(rows), -1)
    return Sample(flat[0], flat[1], flat[3:], flat[2], tuple(weight.shape))


LEAST_SPREAD = 0.6
"""Noise of a mean is at least this share of what independent errors give: rounding is not always random."""


@dataclass(frozen=True)
class Pattern:
    """A mean error of many elements in noise units, how many times what rounding does that is, the same of eager's."""

    size: float = 0.0
    significance: float = 0.0
    eager: float = 0.0
    what: str = ""


def worst_bias(sample: Sample) -> Pattern:
    """The strongest error that all elements have in common."""
    count = sample.compiled.numel()
    worst = Pattern()
    for name, direction in (("scaled", sample.truth), ("shifted", torch.ones_like(sample.truth))):
        length = direction.norm()
        if float(length) == 0.0 or not math.isfinite(float(length)):
            continue
        along = direction / length
        spread = torch.clamp((sample.noisy @ along).square().mean().sqrt(), min=LEAST_SPREAD)
        amount = (sample.compiled @ along).abs()
        significance = float(amount / spread)
        if significance > worst.significance:
            size, eager = float(amount) / math.sqrt(count), float((sample.eager @ along).abs() / spread)
            what = f"all elements are {name} together by {size:.2f} noise units"
            worst = Pattern(size, significance, eager, what)
    return worst


def worst_lane(sample: Sample) -> Pattern:
    """The row or lane with the most significant mean error."""
    dims = len(sample.shape)
    worst = Pattern()
    for axis in sorted({0, 1, dims - 1}) if dims > 1 else ():
        others = [d for d in range(dims) if d != axis]
        count = sample.compiled.numel() // max(sample.shape[axis], 1)
        if count < 8 or sample.shape[axis] < 2:
            continue
        mean, eager = (v.view(sample.shape).mean(others) for v in (sample.compiled, sample.eager))
        noisy = sample.noisy.view(-1, *sample.shape).mean([d + 1 for d in others])
        spread = noisy.square().mean(0).sqrt()
        floor = max(float(spread.square().mean().sqrt()) * 0.7, LEAST_SPREAD / math.sqrt(count))
        spread = spread.clamp_min(floor)
        where = int((mean.abs() / spread).argmax())
        significance, size = float(mean[where].abs() / spread[where]), float(mean[where].abs())
        if significance > worst.significance:
            what = f"index {where} of dimension {axis} is off by {size:.1f} noise units on average"
            worst = Pattern(size, significance, float((eager.abs() / spread).max()), what)
    return worst


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
    draft = _draft(leaf, compiled)
    wrong = result != leaf.eager
    if not bool(wrong.any()):
        return replace(draft, sentence="equal to eager", share=0.0)
    wrong &= result != truth
    for seen in leaf.spread.flips.values():
        wrong &= ~seen.to(wrong.device)
    if int(wrong.sum()) > UNSEEN * leaf.spread.most_flips:
        text = "is {c}, eager and float64 say {e} and {t}; no rounding within 8 times the noise changes it"
        return _point(draft, wrong, result, leaf.eager, truth, "exact", text)
    flips = leaf.spread.flips.get(USUAL)
    unstable = 0.0 if flips is None else float(flips.double().mean())
    if unstable > UNDECIDED:
        text = f"{unstable:.0%} of these decisions flip within rounding noise: nothing can be told"
        return replace(draft, kind=INCONCLUSIVE, rule="undecided", sentence=text)
    count = int((result != leaf.eager).sum())
    text = f"{count} of {result.numel()} elements differ from eager, where the deciding floats tie or are within noise"
    return replace(draft, sentence=text, share=count / result.numel(), rule="straddle")
