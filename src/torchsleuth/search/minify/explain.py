"""Which parts of the minimal case may vary and still fail, in sentences, and the nearest case that passes.

Each sentence is the result of questions that differ from the minimal case in that one thing. Nothing is claimed
that was not tried; a bound such as "any size >= 65" was tried at 64, 65, 66 and 130.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from torchsleuth.search.minify.contract import Answers, Input, State, as_oracle
from torchsleuth.search.minify.reducers.plainer import with_dtype
from torchsleuth.search.minify.reducers.sizes import with_shape
from torchsleuth.search.minify.states import checked
from torchsleuth.torch_core.repro.small_graph import plain_names
from torchsleuth.torch_core.tensors import TensorSpec

DTYPES = ("float32", "float64", "bfloat16", "float16")
# What a person still reads; each costs a trial or two.
MOST_DIMENSIONS = 6
# Asked at once, before there is a look at the clock.
AT_ONCE = 4


@dataclass(frozen=True)
class Explanation:
    """Sentences about what may vary, and the nearest case that passes with the one difference it has."""

    sentences: tuple[str, ...]
    neighbour: State | None = None
    difference: str = ""


@dataclass(frozen=True)
class _Variant:
    """The state with one difference: to what something is varied, and how far from what failed that is."""

    to: int | str
    state: State
    distance: float = math.inf
    difference: str = ""


@dataclass(frozen=True)
class _Topic:
    """One thing that is varied, and the sentence for which of its variants failed."""

    variants: list[_Variant]
    sentence: Callable[[Mapping[int | str, bool]], str]


def explain(state: State, oracle: Answers, deadline: float | None = None) -> Explanation:
    """Varies sizes, dtypes, values and settings of a failing state, one at a time; inputs have the names of the script.

    Nothing is begun after `deadline` (of time.monotonic), and there is no sentence on what could not be asked in full.

    >>> explain(state, lambda states: ["relu" in s.graph.code for s in states]).sentences
    ('any size >= 2 in dim 0 of x', 'dtypes float32, float64, bfloat16, float16', 'any values', 'default settings')
    """
    topics = [*itertools.islice(_sizes(state), MOST_DIMENSIONS), _dtypes(state), _values(state)]
    variants = [variant for topic in topics for variant in topic.variants]
    failed: list[bool] = []
    while len(failed) < len(variants) and (deadline is None or time.monotonic() < deadline):
        asked = variants[len(failed) : len(failed) + AT_ONCE]
        failed += [bool(answer) for answer in as_oracle(oracle).each([variant.state for variant in asked])]
    answers = iter(failed)
    sentences = []
    for topic in topics:
        seen = {variant.to: answer for variant, answer in zip(topic.variants, answers)}
        if len(seen) == len(topic.variants):
            sentences.append(topic.sentence(seen))
    config = [f"{m}.{k}" for m, values in state.settings.config.items() for k in values]
    config += list(state.settings.options)
    sentences.append(f"needs {', '.join(config)}" if config else "default settings")
    if state.symbols:
        sentences.append("only with symbolic sizes (dynamic=True)")
    passing = [v for v, answer in zip(variants, failed) if not answer and v.distance < math.inf]
    nearest = min(passing, key=lambda variant: variant.distance, default=None)
    kept = tuple(filter(None, sentences))
    return Explanation(kept) if nearest is None else Explanation(kept, nearest.state, nearest.difference)


def _sizes(state: State) -> Iterator[_Topic]:
    """Each dimension a little larger, twice as large, and a little smaller."""
    called = plain_names([given.name for given in state.inputs])
    for given, spec in state.tensors:
        for dim, size in enumerate(spec.shape):
            where = f"in dim {dim} of {called[given.name]}"
            variants = []
            for number in dict.fromkeys((size + 1, size * 2, size - 1)):
                other = _resized(state, given, dim, number) if number > 0 else None
                if other is not None:
                    distance = abs(math.log(number / max(size, 1)))
                    variants.append(
                        _Variant(number, other, distance, f"size {number} instead of {size} {where}")
                    )

            def sentence(failed: Mapping[int | str, bool], size: int = size, where: str = where) -> str:
                larger = [failed[number] for number in (size + 1, size * 2) if number in failed]
                if not larger:
                    return ""
                if all(larger):
                    return f"any size {where}" if size == 1 else f"any size >= {size} {where}"
                return f"some sizes {where}" if any(larger) else f"only size {size} {where}, of those tried"

            yield _Topic(variants, sentence)


def _resized(state: State, varied: Input, dim: int, number: int) -> State | None:
    spec = varied.spec
    assert isinstance(spec, TensorSpec)
    if spec.shape_expr is not None and not spec.shape_expr[dim].isdigit():
        return None  # a symbolic size varies by itself
    shape = (*spec.shape[:dim], number, *spec.shape[dim + 1 :])
    longer = number > spec.shape[dim]
    other = _stretched(varied, shape, dim) if longer else with_shape(varied, shape)
    return checked(state.having(inputs=tuple(other if i is varied else i for i in state.inputs)))


def _stretched(given: Input, shape: tuple[int, ...], dim: int) -> Input:
    """The input made longer, its values repeated."""
    longer = with_shape(replace(given, value=None), shape)
    if given.value is None or not isinstance(longer.spec, TensorSpec):
        return longer
    places = torch.arange(shape[dim], device=given.value.device) % given.value.shape[dim]
    value = torch.empty_strided(shape, longer.spec.stride, dtype=given.value.dtype)
    return replace(
        longer, value=value.to(given.value.device).copy_(given.value.detach().index_select(dim, places))
    )


def _dtypes(state: State) -> _Topic:
    """Another dtype in the place of the one floating-point dtype that all inputs have, where it is one."""
    floats = {spec.dtype for _, spec in state.tensors} & {*DTYPES}
    if len(floats) != 1:
        return _Topic([], lambda failed: "")
    own = floats.pop()
    others = [(dtype, with_dtype(state, own, dtype)) for dtype in DTYPES if dtype != own]
    variants = [
        _Variant(dtype, other, 2.0, f"{dtype} instead of {own}")
        for dtype, other in others
        if other is not None
    ]

    def sentence(failed: Mapping[int | str, bool]) -> str:
        failing = [own, *(dtype for dtype in DTYPES if failed.get(dtype))]
        fine = [dtype for dtype in DTYPES if failed.get(dtype) is False]
        return f"dtypes {', '.join(failing)}" + (f", but not {', '.join(fine)}" if fine else "")

    return _Topic(variants, sentence)


def _values(state: State) -> _Topic:
    """No value in particular in the place of those that are kept."""
    if state.any_values:
        return _Topic([], lambda failed: "values play no part")
    called = plain_names([i.name for i in state.inputs])
    kept = [called[i.name] for i in state.inputs if i.value is not None]
    free = state.having(inputs=tuple(replace(i, value=None) for i in state.inputs))
    return _Topic(
        [_Variant("any", free)] if kept else [],
        lambda failed: "any values" if failed.get("any", True) else f"the values of {', '.join(kept)} matter",
    )
