"""Which parts of the minimal case may vary and still fail, in sentences, and the nearest case that passes.

Each sentence is the result of questions that differ from the minimal case in that one thing. Nothing is claimed
that was not tried; a bound such as "any size >= 65" was tried at 64, 65, 66 and 130.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from torchsleuth.minify.contract import Input, Oracle, State
from torchsleuth.minify.reduce_forms import with_dtype
from torchsleuth.minify.reduce_shapes import with_shape
from torchsleuth.minify.states import ANY_VALUES, checked
from torchsleuth.tensors.specs import TensorSpec

OTHER_DTYPES = ("float64", "bfloat16", "float16")
# What a person still reads; each costs a trial or two.
MOST_DIMENSIONS = 6


@dataclass(frozen=True)
class Explanation:
    """Sentences about what may vary, and the nearest case that passes with the one difference it has."""

    sentences: tuple[str, ...]
    neighbour: State | None = None
    difference: str = ""


def explain(state: State, oracle: Oracle) -> Explanation:
    """Varies sizes, dtypes, values and settings of a failing state, one at a time.

    >>> explain(state, oracle).sentences
    ('any size >= 65 in dim 1 of x', 'any values', 'default settings')
    """
    sentences: list[str] = []
    passing: list[tuple[float, str, State]] = []
    for name, dim in _dimensions(state):
        sentences.append(_size(state, oracle, name, dim, passing))
    sentences += _dtypes(state, oracle, passing)
    sentences.append(_values(state, oracle))
    sentences.append(_settings(state))
    if state.symbols:
        sentences.append("only with symbolic sizes (dynamic=True)")
    nearest = min(passing, key=lambda item: item[0], default=None)
    return Explanation(
        tuple(s for s in sentences if s),
        None if nearest is None else nearest[2],
        "" if nearest is None else nearest[1],
    )


def _dimensions(state: State) -> Iterator[tuple[str, int]]:
    found = 0
    for given in state.inputs:
        for dim in range(len(given.spec.shape)) if isinstance(given.spec, TensorSpec) else ():
            if found < MOST_DIMENSIONS:
                found += 1
                yield given.name, dim


def _size(state: State, oracle: Oracle, name: str, dim: int, passing: list) -> str:
    spec = next(i.spec for i in state.inputs if i.name == name)
    assert isinstance(spec, TensorSpec)
    size = spec.shape[dim]
    where = f"in dim {dim} of {name}"

    def fails(number: int) -> bool | None:
        other = _resized(state, name, dim, number)
        if other is None:
            return None
        failed = bool(oracle([other])[0])
        if not failed:
            passing.append(
                (abs(math.log(max(number, 1) / size)), f"size {number} instead of {size} {where}", other)
            )
        return failed

    larger = [answer for answer in (fails(size + 1), fails(size * 2)) if answer is not None]
    if not larger:
        return ""
    smaller = fails(size - 1) if size > 1 else True
    if all(larger):
        return f"any size {where}" if smaller and size == 1 else f"any size >= {size} {where}"
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


def _dtypes(state: State, oracle: Oracle, passing: list) -> list[str]:
    floats = {i.spec.dtype for i in state.inputs if isinstance(i.spec, TensorSpec)} & {
        "float32",
        *OTHER_DTYPES,
    }
    if len(floats) != 1:
        return []
    own = floats.pop()
    failing, fine = [own], []
    for dtype in ("float32", *OTHER_DTYPES):
        other = None if dtype == own else with_dtype(state, own, dtype)
        if other is None:
            continue
        if oracle([other])[0]:
            failing.append(dtype)
        else:
            fine.append(dtype)
            passing.append((2.0, f"{dtype} instead of {own}", other))
    if not fine:
        return [f"dtypes {', '.join(failing)}"]
    return [f"dtypes {', '.join(failing)}, but not {', '.join(fine)}"]


def _values(state: State, oracle: Oracle) -> str:
    if state.settings.get(ANY_VALUES):
        return "values play no part"
    kept = [i.name for i in state.inputs if i.value is not None]
    free = state.having(inputs=tuple(replace(i, value=None) for i in state.inputs))
    if not kept or oracle([free])[0]:
        return "any values"
    return f"the values of {', '.join(kept)} matter"


def _settings(state: State) -> str:
    config = [f"{m}.{k}" for m, values in (state.settings.get("config") or {}).items() for k in values]
    config += list(state.settings.get("options") or ())
    return f"needs {', '.join(config)}" if config else "default settings"
