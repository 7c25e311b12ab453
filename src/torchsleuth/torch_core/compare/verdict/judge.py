"""Judge a compiled result: gather the evidence, weigh every leaf, say it in one sentence.

The captured graph itself tells how far its own rounding can reach; whoever holds a graph, the inputs before the call
and the results after it can judge without running the user's compiled function again. The yardstick has two lengths:

1. *Noise* (`noise`): the graph in float64 with a random rounding after every step. It is cheap, and all that is
   asked where nothing is suspicious.
2. *The textbook* (`textbook`), asked only of leaves that are far outside of the noise: every operator taken apart,
   each step as imprecise as the least careful accepted way to compute it, decisions within rounding of their corner
   taken either way, and eager's own other ways to compute the graph. What lies within is less precise, never wrong.

Whatever depends on random numbers that cannot be shown to be eager's is compared by what holds for any of them.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule

from torchsleuth.torch_core.compare.reference.cloning import clone_inputs, same_bits, tensors_in
from torchsleuth.torch_core.compare.reference.eager import MUTATED, Values, result_of
from torchsleuth.torch_core.compare.reference.float64 import MEMORY_ERRORS
from torchsleuth.torch_core.compare.reference.memory import memory_left
from torchsleuth.torch_core.compare.reference.rng import (
    Draw,
    RngState,
    noting_draws,
    restore_rng,
    rng_kept,
    same_state,
    save_rng,
)
from torchsleuth.torch_core.compare.reference.trees import is_inexact
from torchsleuth.torch_core.compare.verdict.evidence import (
    Evidence,
    Reference,
    evidence_on,
    reference_run,
)
from torchsleuth.torch_core.compare.verdict.floats import judge_discrete, judge_floats
from torchsleuth.torch_core.compare.verdict.leaf import REVERSED, Leaf, Spread, as_real
from torchsleuth.torch_core.compare.verdict.limits import Calibration, limits_for, load_calibration
from torchsleuth.torch_core.compare.verdict.verdict import (
    DIVERGED,
    EAGER_SUSPECT,
    INCONCLUSIVE,
    LESS_PRECISE,
    WITHIN_NOISE,
    LeafVerdict,
    Verdict,
    gravest,
    inconclusive,
)

DRAWS_ITS_OWN = (
    "this leaf depends on random numbers that could not be shown to be eager's, so only what holds for any of them was "
    "compared: shape, dtype, finite values; to compare all of it compile under "
    "`torch._inductor.config.patch(fallback_random=True)` and pass rng_matched=True, or what was `drawn`"
)

JUDGING_BYTES = 100
"""Memory per element while a leaf is judged: a dozen float64 numbers."""

BEYOND_DOUBT = 10.0
"""Times the limit from which on few runs of a second opinion are enough to call a leaf wrong."""

MANY = 0.1
"""The share of elements that must be beyond the limit for that."""

BY_NOISE = ("element", "spread", "bias", "lane", "exact", "eager")
"""Rules that compare with measured noise: what they find is looked at a second time."""

FOR_ANY_NUMBERS = ("type", "layout", "dtype", "device", "shape", "made non-finite")
"""Rules that hold whatever random numbers were drawn."""

ALL_NOISE = ("ill-conditioned", "undecided")
"""Rules by which a leaf says nothing at this precision."""


class NotAGraph(TypeError):
    """What is to be judged against is no graph of torch.fx."""


def _refuse_models(graph: object) -> None:
    if not hasattr(graph, "graph"):
        raise NotAGraph(
            f"judge needs a graph (torch.fx.GraphModule) and got {type(graph).__name__}; "
            "for a model: torchsleuth.compare_models(model, torch.compile(model), inputs)"
        )


def judge(
    graph: GraphModule,
    inputs: Sequence[Any],
    compiled: Callable[..., Any],
    *,
    boxed: bool = False,
    runs: int | None = None,
    repeat: bool = True,
    rng_matched: bool = False,
    notes_draws: bool = False,
    seed: int = 0,
    calibration: Calibration | None = None,
) -> Verdict:
    """Run `compiled` on copies of the inputs (twice with `repeat`) and judge what it returns and mutates.

    Random numbers count as eager's where `rng_matched` says so or as many were drawn; with `notes_draws`, for what a
    backend returned (and not for a function of `torch.compile`'s), those that it drew are handed to the reference.
    Example: `judge(graph, [x], torch.compile(graph)).kind == "WITHIN_NOISE"`.
    """
    _refuse_models(graph)
    start, drawn = save_rng(), list[Draw]()
    with rng_kept():
        with noting_draws(drawn) if notes_draws else nullcontext():
            first, after = _call(compiled, inputs, boxed, start, owned=repeat)
        end = save_rng()
        again = _call(compiled, inputs, boxed, start, owned=True) if repeat else None
    return judge_results(
        graph,
        inputs,
        None,
        first,
        mutated_inputs_after=after,
        second=again,
        runs=runs,
        rng_matched=rng_matched,
        rng_state=start,
        rng_after=end,
        drawn=drawn,
        seed=seed,
        calibration=calibration,
    )


def judge_results(
    graph: GraphModule,
    inputs_before: Sequence[Any],
    eager_results: Any,
    compiled_results: Any,
    *,
    mutated_inputs_after: Sequence[Any] | None = None,
    second: tuple[Any, Sequence[Any]] | None = None,
    runs: int | None = None,
    rng_matched: bool = False,
    rng_state: RngState | None = None,
    rng_after: RngState | None = None,
    drawn: Sequence[Draw] = (),
    seed: int = 0,
    calibration: Calibration | None = None,
) -> Verdict:
    """Judge results that are already there; nothing of the user's is run or changed.

    `inputs_before` are copies taken before the call, `mutated_inputs_after` the inputs after it, `rng_state` and
    `rng_after` the random state before and after it, `drawn` what it drew (`noting_draws`): the reference gets the same
    numbers, or has asked for as many. `eager_results` may be None: eager is then run here, from the graph.
    Example: `judge_results(graph, before, None, compiled(*inputs), mutated_inputs_after=inputs)`.
    """
    _refuse_models(graph)
    began = time.perf_counter()
    calibration = calibration if calibration is not None else load_calibration()
    after = mutated_inputs_after if mutated_inputs_after is not None else ()
    try:
        start = rng_state or save_rng()
        reference = reference_run(graph, inputs_before, runs=runs, start=start, seed=seed, drawn=drawn)
        rng_matched = rng_matched or _same_numbers(reference, rng_after)
        if eager_results is not None:
            reference = replace(reference, eager=_with_eager(reference.eager, eager_results))
        mutated = reference.mutated if mutated_inputs_after is not None else ()
        calls = [(compiled_results, after), *([second] if second is not None else [])]
        results = [_shaped_like(reference.eager, result_of(out, given, mutated)) for out, given in calls]
        for result in results:
            if (why := _other_structure(reference.eager.keys(), result)) is not None:
                return inconclusive(why)
        seen = Evidence()
        found: list[list[LeafVerdict]] = [[] for _ in results]
        for paths in reference.pieces():
            part = evidence_on(reference, paths)
            for result, judged in zip(results, found):
                judged += _judge_leaves(part, result, rng_matched, calibration)
            seen = seen.and_seen_in(part)
            del part  # it may be most of the memory that there is
    except MEMORY_ERRORS as error:
        return inconclusive(
            f"there is not enough memory for a float64 run, on the CPU either: {_first_line(error)}"
        )
    except Exception as error:
        where = traceback.format_exc(limit=-3)
        why = f"the graph could not be run for reference: {type(error).__name__}: {_first_line(error)}"
        return inconclusive(why, notes=(where,))
    verdict, *others = (_verdict(judged, seen, calibration) for judged in found)
    if mutated_inputs_after is not None:
        verdict = _with_stray_writes(verdict, reference.mutated, inputs_before, after)
    if second is not None:
        verdict = _with_second_run(verdict, others[0], *results)
    return replace(verdict, seconds=time.perf_counter() - began)


def _same_numbers(reference: Reference, rng_after: RngState | None) -> bool:
    """Whether the reference drew what the compiled code did: it was given that, or asked each generator for as much.

    As much is not the same where a compiler may choose the memory layout, from four dimensions on (channels last): the
    numbers then fall on other elements.
    """
    if reference.handed_over:
        return True
    if any(value.dim() > 3 for value in tensors_in(list(reference.recorder.drawn.values()))):
        return False
    return rng_after is not None and reference.after is not None and same_state(rng_after, reference.after)


def _call(
    compiled: Callable[..., Any], inputs: Sequence[Any], boxed: bool, start: RngState, owned: bool
) -> tuple[Any, list[Any]]:
    """What it returns and the inputs after it; where it is called again, the results are to be `owned`."""
    given = clone_inputs(list(inputs))
    restore_rng(start)
    with torch.no_grad():
        # A boxed function empties the list it is given, so it gets its own.
        out = compiled(list(given)) if boxed or getattr(compiled, "_boxed_call", False) else compiled(*given)
    return clone_inputs(out) if owned else out, given


def _shaped_like(eager: Values, result: Values) -> Values:
    """A single output may come back alone or in a list of one; take eager's way of writing it."""
    paths = eager.keys()
    if "outputs" in paths and "outputs[0]" in result and "outputs[1]" not in result:
        result["outputs"] = result.pop("outputs[0]")
    if "outputs[0]" in paths and "outputs" in result:
        result["outputs[0]"] = result.pop("outputs")
    return result


def weigh(
    evidence: Evidence, result: Values, rng_matched: bool = False, calibration: Calibration | None = None
) -> Verdict:
    """The verdict on one result, given evidence that may serve many results.

    Example: `weigh(gather(graph, inputs, start=save_rng()), result_of(compiled(*inputs)))`.
    """
    why = _other_structure([leaf.path for leaf in evidence.leaves], result)
    if why is not None:
        return inconclusive(why, runs=evidence.runs, fallbacks=evidence.fallbacks, notes=evidence.notes)
    return _verdict(_judge_leaves(evidence, result, rng_matched, calibration), evidence, calibration)


def _other_structure(paths: Collection[str], result: Values) -> str | None:
    """What is missing or too much in a result, in a sentence; None where nothing is."""
    expected = {path for path in paths if path in result or MUTATED not in path}
    missing = sorted(expected - result.keys())
    extra = sorted(result.keys() - expected)
    if not missing and not extra:
        return None
    return f"eager and compiled return different structures: missing {missing[:5]}, unexpected {extra[:5]}"


def _judge_leaves(
    evidence: Evidence, result: Values, rng_matched: bool, calibration: Calibration | None
) -> list[LeafVerdict]:
    found = [
        _judge_one(leaf, result, rng_matched, calibration) for leaf in evidence.leaves if leaf.path in result
    ]
    accused = (DIVERGED, EAGER_SUSPECT)
    doubted = [leaf.path for leaf in found if leaf.kind in accused and leaf.rule in BY_NOISE]
    if not doubted or evidence.second_opinion is None:
        return found
    second: dict[str, tuple[Leaf, LeafVerdict]] = {}
    for few in (True, False):
        asked = evidence.second_opinion(doubted, few)
        if not asked.leaves:
            why = ", ".join(asked.notes)
            return [_alone(verdict, why) if verdict.path in doubted else verdict for verdict in found]
        leaves = [leaf for leaf in asked.leaves if leaf.path in doubted]
        second = {leaf.path: (leaf, _judge_one(leaf, result, rng_matched, calibration)) for leaf in leaves}
        if any(_beyond_doubt(verdict) for _, verdict in second.values()):
            break
    return [_confirmed(leaf, *second[leaf.path]) if leaf.path in second else leaf for leaf in found]


def _alone(first: LeafVerdict, why: str) -> LeafVerdict:
    """What is said of a leaf that a first look called wrong where a second opinion could not be had."""
    clear = first.z is None or _beyond_doubt(first)
    kind = first.kind if first.kind != DIVERGED or clear else INCONCLUSIVE
    return replace(first, kind=kind, sentence=f"{first.sentence}; {why}")


def _beyond_doubt(verdict: LeafVerdict) -> bool:
    """Whether a leaf is so far outside of what few runs show, in so many elements, that more would not change it.

    A single element may hang on a decision that few runs did not happen to take the other way.
    """
    far = (verdict.z or 0.0) > BEYOND_DOUBT * (verdict.limit or math.inf)
    return verdict.kind == DIVERGED and far and (verdict.share or 0.0) > MANY


def _judge_one(leaf: Leaf, result: Values, rng_matched: bool, calibration: Calibration | None) -> LeafVerdict:
    try:
        verdict = _judge_leaf(leaf, result[leaf.path], calibration)
    except MEMORY_ERRORS as error:
        verdict = LeafVerdict(leaf.path, INCONCLUSIVE, f"too large to judge: {_first_line(error)}", "memory")
    if (
        leaf.random
        and not rng_matched
        and verdict.kind != WITHIN_NOISE
        and verdict.rule not in FOR_ANY_NUMBERS
    ):
        verdict = replace(verdict, kind=INCONCLUSIVE, rule="random", sentence=DRAWS_ITS_OWN)
    return verdict


def _confirmed(first: LeafVerdict, leaf: Leaf, second: LeafVerdict) -> LeafVerdict:
    """What is said in the end of a leaf that a first look called wrong."""
    if second.kind != WITHIN_NOISE or first.kind == EAGER_SUSPECT:
        return second
    if first.z is None:
        return replace(second, sentence=f"{first.sentence}; a textbook way to compute it may do so as well")
    size = as_real(leaf.truth).nan_to_num(0.0, 0.0, 0.0).square().mean().sqrt()
    text = (
        f"less precise than eager ({first.rmse_ratio or 1.0:.1f} times its error), as textbook ways to compute it are: "
        f"off by {abs((first.compiled or 0.0) - (first.truth or 0.0)):.2g} at {list(first.index or ())}, "
        f"where values are about {float(size):.2g}"
    )
    return replace(first, kind=LESS_PRECISE, sentence=text)


def _verdict(found: list[LeafVerdict], evidence: Evidence, calibration: Calibration | None) -> Verdict:
    # A leaf that is all noise (the gradient of a bias before a normalisation) must not hide what the others say.
    telling = [leaf.kind for leaf in found if leaf.rule not in ALL_NOISE]
    kind = gravest(telling or [leaf.kind for leaf in found])
    notes = evidence.notes
    if evidence.fallbacks:
        named = ", ".join(f"{name} ({why})" for name, why in list(evidence.fallbacks.items())[:5])
        notes += (
            f"no float64 reference for {len(evidence.fallbacks)} nodes, run in their own dtype: {named}",
        )
    return Verdict(
        kind,
        _sentence(kind, found),
        tuple(found),
        fallbacks=evidence.fallbacks,
        notes=notes,
        runs=evidence.runs,
        calibrated=calibration.name if calibration is not None else None,
    )


def _judge_leaf(leaf: Leaf, compiled: Any, calibration: Calibration | None) -> LeafVerdict:
    if leaf.means_nothing:
        return LeafVerdict(leaf.path, WITHIN_NOISE, "only dropout gives it a meaning, and nothing is dropped")
    if not isinstance(leaf.eager, torch.Tensor):
        return _judge_plain(leaf, compiled)
    if not isinstance(compiled, torch.Tensor):
        return LeafVerdict(leaf.path, DIVERGED, f"a tensor became {type(compiled).__name__}", "type")
    for name in ("layout", "dtype", "device", "shape"):
        ours, theirs = getattr(leaf.eager, name), getattr(compiled, name)
        if ours != theirs:
            return LeafVerdict(leaf.path, DIVERGED, f"{name} {_short(ours)} became {_short(theirs)}", name)
    if not isinstance(leaf.truth, torch.Tensor) or leaf.truth.shape != compiled.shape:
        text = "float64 gives another shape here: it depends on values that rounding decides"
        return LeafVerdict(leaf.path, INCONCLUSIVE, text, "reference")
    if compiled.is_quantized:
        equal = torch.equal(compiled.int_repr(), leaf.eager.int_repr())
        kind, text = (
            (WITHIN_NOISE, "equal to eager")
            if equal
            else (INCONCLUSIVE, "quantised values differ: no reference")
        )
        return LeafVerdict(leaf.path, kind, text, "quantised")
    if leaf.unwritten is not None:
        where = leaf.unwritten
        values = (leaf.eager, leaf.truth, compiled)
        eager, truth, compiled = (value.masked_fill(where.to(value.device), 0) for value in values)
        leaf = replace(leaf, eager=eager, truth=truth, unwritten=None)
    if not is_inexact(compiled):
        return judge_discrete(leaf, compiled)
    if JUDGING_BYTES * compiled.numel() > memory_left(compiled.device):
        leaf, compiled = leaf.on_cpu(), compiled.cpu()
    dtype = leaf.eager.dtype
    healthy = calibration.healthy_z(compiled.device.type, dtype) if calibration is not None else None
    return judge_floats(leaf, compiled, limits_for(dtype, compiled.numel(), healthy))


def _judge_plain(leaf: Leaf, compiled: Any) -> LeafVerdict:
    """Values that are not tensors: equal, or a float within what noisy runs showed."""
    if type(leaf.eager) is type(compiled) and (leaf.eager == compiled or leaf.eager != leaf.eager):
        return LeafVerdict(leaf.path, WITHIN_NOISE, "equal to eager")
    if isinstance(leaf.eager, float) and isinstance(compiled, float):
        eager, truth, result = (
            torch.tensor([v], dtype=torch.float64, device="cpu") for v in (leaf.eager, leaf.truth, compiled)
        )
        # A Python float came from a tensor of some dtype; float32 is the shortest that gives it room.
        spread = Spread(truth, torch.float32)
        for kind, value in leaf.spread.values:
            if isinstance(value, float) and kind != REVERSED:
                spread.add(torch.tensor([value], dtype=torch.float64, device="cpu"), kind)
        wrapped = replace(leaf, eager=eager.float(), truth=truth, spread=spread)
        return replace(judge_floats(wrapped, result.float(), limits_for(torch.float32, 1)), shape=None)
    text = f"{leaf.eager!r} became {compiled!r}"
    flips = any(run != leaf.truth for _, run in leaf.spread.values)
    return LeafVerdict(leaf.path, INCONCLUSIVE if flips else DIVERGED, text, "exact")


def _with_eager(eager: Values, eager_results: Any) -> Values:
    """The eager results the caller saw, instead of those of the graph's own run."""
    given = _shaped_like(eager, result_of(eager_results))
    return {p: given[p] if _alike(own, given.get(p)) else own for p, own in eager.items()}


def _alike(ours: Any, theirs: Any) -> bool:
    if not isinstance(ours, torch.Tensor) or not isinstance(theirs, torch.Tensor):
        return type(ours) is type(theirs)
    return ours.shape == theirs.shape and ours.dtype == theirs.dtype


def _with_stray_writes(
    verdict: Verdict, mutated: tuple[int, ...], before: Sequence[Any], after: Sequence[Any]
) -> Verdict:
    """Inputs that compiled changed and eager did not."""
    stray = [
        i
        for i, (then, now) in enumerate(zip(before, after))
        if i not in mutated
        and isinstance(then, torch.Tensor)
        and isinstance(now, torch.Tensor)
        and not same_bits(then, now)
    ]
    if not stray:
        return verdict
    found = tuple(
        LeafVerdict(f"inputs[{i}]", DIVERGED, "compiled wrote to this input, eager does not", "stray write")
        for i in stray
    )
    leaves = (*verdict.leaves, *found)
    return replace(verdict, kind=DIVERGED, leaves=leaves, sentence=_sentence(DIVERGED, list(leaves)))


def _with_second_run(verdict: Verdict, other: Verdict, first: Values, second: Values) -> Verdict:
    differ = [path for path, value in first.items() if not _bitwise(value, second.get(path))]
    if not differ:
        return verdict
    note = f"two compiled runs on the same inputs and random numbers differ in {', '.join(differ[:5])}"
    verdict = replace(verdict, nondeterministic=True, notes=(*verdict.notes, note))
    if verdict.kind == other.kind:
        return verdict
    if DIVERGED in (verdict.kind, other.kind):
        why = f"{note}, and only one of them lies outside the noise: non-determinism, not (only) accuracy"
        return replace(verdict, kind=INCONCLUSIVE, sentence=why)
    return verdict


def _bitwise(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return same_bits(left, right)
    return bool(left == right) or left != left


def _sentence(kind: str, found: list[LeafVerdict]) -> str:
    decisive = [leaf for leaf in found if leaf.kind == kind]
    if kind == WITHIN_NOISE:
        floats = [leaf for leaf in found if leaf.z is not None]
        if floats and all(leaf.closer_than_eager for leaf in floats):
            return "the compiled result is closer to the truth than eager"
        top = max((leaf.z or 0.0 for leaf in floats), default=0.0)
        return (
            f"every output lies within rounding noise (at most {top:.1f} noise units off)"
            if floats
            else "every output is equal"
        )
    worst = max(decisive, key=lambda leaf: leaf.z or 0.0)
    also = f" (and {len(decisive) - 1} more of {len(found)} leaves)" if len(decisive) > 1 else ""
    return f"{worst.path}: {worst.sentence}{also}"


def _short(value: Any) -> str:
    return str(tuple(value)) if isinstance(value, torch.Size) else str(value).removeprefix("torch.")


def _first_line(error: BaseException) -> str:
    # What a device says of its other processes after that is no help here.
    return (str(error).strip().splitlines() or ["no message"])[0].partition(" GPU ")[0][:200]
