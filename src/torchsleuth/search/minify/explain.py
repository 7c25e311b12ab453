"""Which parts of the minimal case may vary and still fail, in sentences, and the nearest case that passes.

Each sentence is the result of questions that differ from the minimal case in that one thing. Nothing is claimed
that was not tried; a bound such as "any size >= 65" was tried at 64, 65, 66 and 130.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchsleuth.search.minify.contract import Answers, Input, State, as_oracle
from torchsleuth.search.minify.reducers.sizes import with_shape
from torchsleuth.search.minify.reducers.tensors import with_dtype
from torchsleuth.search.minify.states import checked
from torchsleuth.torch_core.tensors import TensorSpec

DTYPES = ("float32", "float64", "bfloat16", "float16")
# What a person still reads; each costs a trial or two.
MOST_DIMENSIONS = 6
# Asked at once, before there is a look at the clock.
AT_ONCE = 4
# Which variant failed: by what was varied, and to what.
_Told = Mapping[tuple[Any, int | str], bool]


@dataclass(frozen=True)
class Explanation:
    """Sentences about what may vary, and the nearest case that passes with the one difference it has."""

    sentences: tuple[str, ...]
    neighbour: State | None = None
    difference: str = ""


@dataclass(frozen=True)
class _Variant:
    """The state with one difference: what is varied, to what, and how far from what failed that is."""

    topic: tuple[str, int] | str
    to: int | str
    state: State
    distance: float = math.inf
    difference: str = ""


def explain(state: State, oracle: Answers, deadline: float | None = None) -> Explanation:
    """Varies sizes, dtypes, values and settings of a failing state, one at a time.

    Nothing is begun after `deadline` (of time.monotonic), and nothing said of what could not be asked in full.

    >>> explain(state, lambda states: ["relu" in s.graph.code for s in states]).sentences
    ('any size >= 2 in dim 0 of x', 'dtypes float32, float64, bfloat16, float16', 'any values', 'default settings')
    """
    dimensions = list(_dimensions(state))
    variants = [v for name, dim in dimensions for v in _sizes(state, name, dim)]
    variants += [*_dtypes(state), *_values(state)]
    failed: list[bool] = []
    while len(failed) < len(variants) and (deadline is None or time.monotonic() < deadline):
        asked = variants[len(failed) : len(failed) + AT_ONCE]
        failed += [bool(answer) for answer in as_oracle(oracle).each([variant.state for variant in asked])]
    told = {(variant.topic, variant.to): answer for variant, answer in zip(variants, failed)}
    unknown = {variant.topic for variant in variants[len(failed) :]}
    sentences = [
        _size_sentence(state, name, dim, told) for name, dim in dimensions if (name, dim) not in unknown
    ]
    sentences += [] if "dtype" in unknown else [_dtype_sentence(state, told)]
    sentences += [] if "values" in unknown else [_value_sentence(state, told)]
    sentences.append(_settings(state))
    if state.symbols:
        sentences.append("only with symbolic sizes (dynamic=True)")
    passing = [v for v, answer in zip(variants, failed) if not answer and v.distance < math.inf]
    nearest = min(passing, key=lambda variant: variant.distance, default=None)
    return Explanation(
        tuple(s for s in sentences if s),
        None if nearest is None else nearest.state,
        "" if nearest is None else nearest.difference,
    )


def _dimensions(state: State) -> Iterator[tuple[str, int]]:
    found = 0
    for given in state.inputs:
        for dim in range(len(given.spec.shape)) if isinstance(given.spec, TensorSpec) else ():
            if found < MOST_DIMENSIONS:
                found += 1
                yield given.name, dim


def _size_of(state: State, name: str, dim: int) -> int:
    spec = next(i.spec for i in state.inputs if i.name == name)
    assert isinstance(spec, TensorSpec)
    return spec.shape[dim]


def _sizes(state: State, name: str, dim: int) -> Iterator[_Variant]:
    size = _size_of(state, name, dim)
    for number in dict.fromkeys((size + 1, size * 2, size - 1)):
        other = _resized(state, name, dim, number) if number > 0 else None
        if other is not None:
            what = f"size {number} instead of {size} in dim {dim} of {name}"
            yield _Variant((name, dim), number, other, abs(math.log(number / max(size, 1))), what)


def _size_sentence(state: State, name: str, dim: int, told: _Told) -> str:
    size = _size_of(state, name, dim)
    topic, where = (name, dim), f"in dim {dim} of {name}"
    larger = [told[topic, number] for number in (size + 1, size * 2) if (topic, number) in told]
    if not larger:
        return ""
    if all(larger):
        return f"any size {where}" if size == 1 else f"any size >= {size} {where}"
    return f"only size {size} {where}, of those tried" if not any(larger) else f"some sizes {where}"


def _resized(state: State, name: str, dim: int, number: int) -> State | None:
    spec = next(i.spec for i in state.inputs if i.name == name)
    assert isinstance(spec, TensorSpec)
    shape = (*spec.shape[:dim], number, *spec.shape[dim + 1 :])
    if spec.shape_expr is not None and not spec.shape_expr[dim].isdigit():
        return None  # a symbolic size varies by itself
    inputs = []
    for given in state.inputs:
        if given.name == name:
            given = _stretched(given, dim, number) if number > spec.shape[dim] else with_shape(given, shape)
        inputs.append(given)
    return checked(state.having(inputs=tuple(inputs)))


def _stretched(given: Input, dim: int, number: int) -> Input:
    """The input made longer, its values repeated."""
    spec = given.spec
    assert isinstance(spec, TensorSpec)
    longer = with_shape(replace(given, value=None), (*spec.shape[:dim], number, *spec.shape[dim + 1 :]))
    if given.value is None or not isinstance(longer.spec, TensorSpec):
        return longer
    places = torch.arange(number, device=given.value.device) % spec.shape[dim]
    value = torch.empty_strided(longer.spec.shape, longer.spec.stride, dtype=given.value.dtype)
    return replace(
        longer, value=value.to(given.value.device).copy_(given.value.detach().index_select(dim, places))
    )


def _float_dtype(state: State) -> str | None:
    """The one floating-point dtype that all inputs have, where it is one."""
    floats = {i.spec.dtype for i in state.inputs if isinstance(i.spec, TensorSpec)} & {*DTYPES}
    return floats.pop() if len(floats) == 1 else None


def _dtypes(state: State) -> Iterator[_Variant]:
    own = _float_dtype(state)
    for dtype in DTYPES if own is not None else ():
        other = None if dtype == own else with_dtype(state, own or "", dtype)
        if other is not None:
            yield _Variant("dtype", dtype, other, 2.0, f"{dtype} instead of {own}")


def _dtype_sentence(state: State, told: _Told) -> str:
    own = _float_dtype(state)
    if own is None:
        return ""
    failing = [own, *(dtype for dtype in DTYPES if told.get(("dtype", dtype)))]
    fine = [dtype for dtype in DTYPES if told.get(("dtype", dtype)) is False]
    return f"dtypes {', '.join(failing)}" + (f", but not {', '.join(fine)}" if fine else "")


def _kept(state: State) -> list[str]:
    return [i.name for i in state.inputs if i.value is not None]


def _values(state: State) -> Iterator[_Variant]:
    if not state.any_values and _kept(state):
        free = state.having(inputs=tuple(replace(i, value=None) for i in state.inputs))
        yield _Variant("values", "any", free)


def _value_sentence(state: State, told: _Told) -> str:
    if state.any_values:
        return "values play no part"
    if told.get(("values", "any"), True):
        return "any values"
    return f"the values of {', '.join(_kept(state))} matter"


def _settings(state: State) -> str:
    config = [f"{m}.{k}" for m, values in state.settings.config.items() for k in values]
    config += list(state.settings.options)
    return f"needs {', '.join(config)}" if config else "default settings"
