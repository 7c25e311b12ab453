"""When one state is smaller than another: a total order, so that a search ends and its result is reproducible.

What a reader must understand comes first (calls, outputs, inputs), then what a run depends on (sizes, symbols,
settings, dtypes, values), and the printed length last.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from torchsleuth.search.minify.search.contract import Input, State
from torchsleuth.torch_core.graphs.cut import calls_of
from torchsleuth.torch_core.tensors.specs import ScalarSpec, TensorSpec

_DTYPES = ("float32", "int64", "bool", "float64", "int32", "bfloat16", "float16")


@functools.singledispatch
def size_of(state: Any) -> tuple[Any, ...]:
    """A key that is smaller for a simpler state; its first number is how much there is to read, calls of a graph.

    >>> size_of(state) < size_of(state_of(gm, [torch.ones(9)]))
    True
    """
    raise TypeError(f"nobody said how large a {type(state).__name__} is")


@size_of.register
def _(state: State) -> tuple[Any, ...]:
    graph = state.graph.graph
    tensors = [i.spec for i in state.inputs if isinstance(i.spec, TensorSpec)]
    return (
        calls_of(state.graph),
        state.settings.level == "aot",
        len(graph.output_node().all_input_nodes),
        len(state.inputs),
        sum(t.device != "cpu" for t in tensors),
        len(state.symbols),
        sum(isinstance(i.spec, ScalarSpec) for i in state.inputs),
        _settings(state),
        sum(math.prod(t.shape) for t in tensors),
        sum(len(t.shape) for t in tensors),
        sum(not _is_contiguous(t) for t in tensors),
        sum(t.requires_grad or t.is_parameter for t in tensors),
        sum(_rank(t.dtype) for t in tensors),
        sum(_value_rank(i, state.any_values) for i in state.inputs),
        sum(_weight((n.args, n.kwargs)) for n in graph.nodes if n.op != "output"),
        # The positions of inputs used twice count too: f(x, x) is simpler than f(x, y).
        sum(len(str(n.args)) + len(str(n.kwargs)) for n in graph.nodes),
    )


def _settings(state: State) -> int:
    settings = state.settings
    count = sum(len(values) for values in settings.config.values()) + len(settings.options)
    kwargs = settings.compile_kwargs or {"is_inference": True}
    count += sum(bool(v) for k, v in kwargs.items() if k != "is_inference") + (not kwargs.get("is_inference"))
    world = settings.state
    if world is None:
        return count
    return count + sum(map(bool, (world.grad, world.inference_mode, world.deterministic, world.autocast)))


def _rank(dtype: str) -> int:
    return _DTYPES.index(dtype) if dtype in _DTYPES else len(_DTYPES)


def _is_contiguous(spec: TensorSpec) -> bool:
    expected = 1
    for size, stride in zip(reversed(spec.shape), reversed(spec.stride)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return spec.storage_offset == 0 and spec.alias_of is None


def _value_rank(given: Input, play_no_part: bool) -> int:
    """Ones and zeros before any value from a seed, then small whole numbers, whole numbers, anything."""
    if not given.is_tensor:
        return 0
    if given.value is None:
        return 0 if play_no_part else 3
    value = given.value.detach()
    if bool((value == 1).all()):
        return 1
    if bool((value == 0).all()):
        return 2
    if value.is_complex() or not bool((value == value.double().round()).all()):
        return 6
    return 4 if bool((value.double().abs() <= 8).all()) else 5


def _weight(value: Any) -> int:
    """How much there is to read in an argument: literals count, nodes do not."""
    if isinstance(value, (list, tuple)):
        return sum(map(_weight, value)) + len(value)
    if isinstance(value, dict):
        return sum(map(_weight, value.values())) + len(value)
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, (int, float)):
        return 0 if value in (0, 1, -1) else 1
    return 0
