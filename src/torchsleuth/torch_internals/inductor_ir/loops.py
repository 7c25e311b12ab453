"""What a loop nest of Inductor's IR computes, without code generation: its body runs once, on whole grids.

One idea: the body of a loop is a Python function over index symbols that calls `ops.*` for every step. Here
each index symbol stands for all its values at once, so every `ops.*` call is one torch call on tensors that
broadcast over the grid (loop axes first, reduced axes last). bfloat16 and float16 are computed in float32,
as generated code does.
Differs between torch versions: the set of `ops.*`; a step that is not known here raises NotInterpretable.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import sympy
import torch
from torch import Tensor

from torchsleuth.torch_internals.inductor_ir.arithmetic import (
    POINTWISE,
    NotInterpretable,
    computed_in,
    number,
    reduced,
    scanned,
    value_of,
)


class Memory(Protocol):
    """Where a loop reads and writes: flat storage by buffer name, and the values of the graph's own symbols."""

    symbols: dict[Any, Any]

    def flat(self, name: str) -> Tensor: ...


def plain(value: Any) -> Any:
    """The tensor inside Inductor's operator-overloading wrapper; tuples are looked into."""
    if isinstance(value, (tuple, list)):
        return tuple(plain(each) for each in value)
    return value.value if type(value).__name__ == "OpsValue" else value


# Only with fallback_random does a compiled graph draw what eager draws, and then by a kernel of its own.
_RANDOM = ("load_seed", "rand", "rand_eager", "randn", "randint64")


def _refusing(step: Callable[..., Any]) -> Callable[..., Any]:
    """A torch call of ours that fails says nothing about the graph; an access outside a buffer does."""

    @functools.wraps(step)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return step(*args, **kwargs)
        except (NotInterpretable, IndexError):
            raise
        except Exception as error:
            raise NotInterpretable(f"ops.{step.__name__.strip('_')} cannot be evaluated: {error}") from error

    return guarded


class LoopOps:
    """The `ops.*` handler for one loop nest: its grid, the mask in force and the symbols made from data."""

    def __init__(self, memory: Memory, device: torch.device, sizes: Sequence[int], reduced_axes: int) -> None:
        self._memory = memory
        self._device = device
        self._sizes = list(sizes)
        self._kept = len(sizes) - reduced_axes
        self._mask: Tensor | None = None
        self._known: dict[Any, Any] = dict(memory.symbols)
        self._made = 0
        self._constants: dict[int, Tensor] = {}
        self.axes = [self._axis(axis) for axis in range(len(sizes))]

    def _axis(self, axis: int) -> Any:
        """The symbol of one loop axis; as in generated code, an axis of one element has none."""
        if self._sizes[axis] == 1:
            return sympy.S.Zero
        shape = [1] * len(self._sizes)
        shape[axis] = -1
        values = torch.arange(self._sizes[axis], device=self._device).reshape(shape)
        return self._symbol_for("loop", values)

    def _symbol_for(self, kind: str, values: Tensor) -> Any:
        symbol = sympy.Symbol(f"{kind}_{self._made}", integer=True, nonnegative=True)
        self._made += 1
        self._known[symbol] = values
        return symbol

    def _tensor(self, value: Any, like: torch.dtype | None = None) -> Tensor:
        """A step's argument as a tensor of the grid's rank, so that no step treats it as a mere scalar."""
        if isinstance(value, (sympy.Basic, torch.SymInt)):
            value = value_of(value, self._known)
        if not isinstance(value, Tensor):
            dtype = like
            if like is None or (isinstance(value, float) and not like.is_floating_point):
                dtype = {bool: torch.bool, int: torch.int64}.get(type(value), torch.float32)
            value = torch.tensor(value, dtype=dtype, device=self._device)
        return value.reshape([1] * len(self._sizes)) if value.dim() == 0 else value

    # Steps that read, write or make indices.

    def _index(self, expression: Any) -> Tensor:
        index = self._tensor(value_of(expression, self._known)).to(torch.int64)
        return index if self._mask is None else torch.where(self._mask, index, 0)

    @_refusing
    def load(self, name: str, index: Any) -> Tensor:
        storage = self._memory.flat(name)
        where = self._index(index)
        if self._mask is not None and not bool(self._mask.any()):
            return torch.zeros_like(where, dtype=computed_in(storage.dtype))
        _require_inside(where, storage, "reads", name)
        values = storage[where.to(storage.device)].to(self._device)
        return values.to(computed_in(storage.dtype))

    def store(self, name: str, index: Any, value: Any, mode: str | None = None) -> None:
        self._write(name, index, value, mode, self._sizes)

    def store_reduction(self, name: str, index: Any, value: Any) -> None:
        ones = [1] * (len(self._sizes) - self._kept)
        self._write(name, index, value, None, [*self._sizes[: self._kept], *ones])

    @_refusing
    def _write(self, name: str, index: Any, value: Any, mode: str | None, shape: list[int]) -> None:
        storage = self._memory.flat(name)
        where = self._index(index).expand(shape).reshape(-1)
        _require_inside(where, storage, "writes", name)
        values = self._tensor(plain(value)).expand(shape).reshape(-1).to(storage.dtype)
        if mode is None:
            storage[where] = values
        elif mode == "atomic_add":
            storage.index_put_((where,), values, accumulate=True)
        elif mode in ("atomic_max", "atomic_min"):
            storage.scatter_reduce_(0, where, values, "amax" if mode == "atomic_max" else "amin")
        else:
            raise NotInterpretable(f"the loop writes {name} in the mode {mode!r}")

    def indirect_indexing(self, values: Any, size: Any, check: bool = True, wrap_neg: bool = True) -> Any:
        index = self._tensor(values).to(torch.int64)
        limit = value_of(size, self._known)
        if wrap_neg:
            index = torch.where(index < 0, index + limit, index)
        if check:
            self._require((index >= 0) & (index < limit), f"index out of bounds: 0 <= index < {limit}")
        return self._symbol_for("indirect", index)

    def check_bounds(self, expression: Any, size: Any, lower: bool, upper: bool) -> None:
        index, limit = self._tensor(value_of(expression, self._known)), value_of(size, self._known)
        inside = torch.ones_like(index, dtype=torch.bool)
        if lower:
            inside = inside & (index >= 0)
        if upper:
            inside = inside & (index < limit)
        self._require(inside, f"index out of bounds: 0 <= index < {limit}")

    def device_assert_async(self, condition: Any, message: str) -> Tensor:
        holds = self._tensor(condition).bool()
        self._require(holds, message)
        return holds

    def _require(self, holds: Tensor, message: str) -> None:
        """Generated code checks only where the mask lets it read, and stops with a RuntimeError."""
        if self._mask is not None:
            holds = holds | ~self._mask
        if not bool(holds.all()):
            raise RuntimeError(message)

    # Steps that make values.

    @_refusing
    def constant(self, value: Any, dtype: torch.dtype) -> Tensor:
        if isinstance(value, sympy.Basic):
            value = value_of(value, self._known)
        made = self._tensor(torch.tensor(value, dtype=computed_in(dtype), device=self._device))
        return self._constants.setdefault(id(made), made)

    @_refusing
    def index_expr(self, expression: Any, dtype: torch.dtype) -> Tensor:
        return self._tensor(value_of(expression, self._known)).to(computed_in(dtype))

    value_expr = index_expr

    @_refusing
    def to_dtype(
        self, x: Any, dtype: torch.dtype, src_dtype: Any = None, use_compute_types: bool = True
    ) -> Tensor:
        """Without compute types a narrow dtype rounds; constants are folded before, and keep their value."""
        if id(x) in self._constants:
            return self._constants.setdefault(id(made := x.to(computed_in(dtype))), made)
        x = self._tensor(x)
        return x.to(computed_in(dtype)) if use_compute_types else x.to(dtype).to(computed_in(dtype))

    @_refusing
    def to_dtype_bitcast(self, x: Any, dtype: torch.dtype, src_dtype: torch.dtype) -> Tensor:
        return self._tensor(x).to(src_dtype).view(dtype).to(computed_in(dtype))

    def masked(self, mask: Any, body: Callable[[], Any], other: Any) -> Tensor:
        outer, mask = self._mask, self._tensor(mask).bool()
        self._mask = mask if outer is None else outer & mask
        try:
            inside = self._tensor(plain(body()))
        finally:
            self._mask = outer
        return torch.where(mask, inside, self._tensor(plain(other), inside.dtype).to(inside.dtype))

    @_refusing
    def bucketize(
        self, values: Any, boundaries: Any, boundary_indices: Any, indexing_dtype: torch.dtype, right: bool,
        sorter: Any = None, sorter_indices: Any = None,
    ) -> Tensor:  # fmt: skip
        if sorter is not None or not isinstance(boundary_indices, int):
            raise NotInterpretable("the loop searches a table of boundaries with several rows or a sorter")
        name, count, _, stride = boundaries
        steps = torch.arange(number(count, self._known), device=self._device) * number(stride, self._known)
        table = self._memory.flat(name)[boundary_indices + steps]
        return torch.searchsorted(table, self._tensor(values).to(table.dtype), right=right).to(indexing_dtype)

    @_refusing
    def reduction(self, dtype: torch.dtype, src_dtype: torch.dtype, kind: str, value: Any) -> Any:
        values = value if isinstance(value, tuple) else (value,)
        shape = [*self._sizes[: self._kept], -1]
        rows = [self._tensor(each).expand(self._sizes).reshape(shape) for each in values]
        results = reduced(kind, rows, dtype)
        kept = [*self._sizes[: self._kept], *([1] * (len(self._sizes) - self._kept))]
        shaped = tuple(each.reshape(kept) for each in results)
        return shaped if len(shaped) > 1 else shaped[0]

    def scan(self, dtypes: Any, combine: Callable[..., Any], values: tuple[Any, ...]) -> tuple[Any, ...]:
        full = [self._tensor(each).expand(self._sizes) for each in values]
        return scanned(full, lambda a, b: plain(combine(a, b)))

    @_refusing
    def sort(
        self, dtypes: Any, values: tuple[Any, ...], stable: bool, descending: bool
    ) -> tuple[Tensor, ...]:
        keys, *rest = (self._tensor(each).expand(self._sizes) for each in values)
        result = torch.sort(keys, dim=-1, stable=True, descending=descending)
        return (result.values, *(torch.gather(each, -1, result.indices) for each in rest))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        step = POINTWISE.get(name)
        if name in _RANDOM:
            raise NotInterpretable(f"the loop draws random numbers (ops.{name}) as only generated code can")
        if step is None:
            raise NotInterpretable(f"the loop uses ops.{name}, which is not known here")

        def apply(*args: Any) -> Any:
            like = next((each.dtype for each in args if isinstance(each, Tensor)), None)
            try:
                return step(*(self._tensor(each, like) for each in args))
            except Exception as error:
                raise NotInterpretable(f"ops.{name} cannot be evaluated: {error}") from error

        return apply


def _require_inside(index: Tensor, storage: Tensor, does: str, name: str) -> None:
    if index.numel() == 0:
        return
    low, high = int(index.min()), int(index.max())
    if low < 0 or high >= storage.numel():
        raise IndexError(
            f"the lowered loop {does} {name} at {low if low < 0 else high}; it has {storage.numel()} elements"
        )


def run_loop(buffer: Any, memory: Memory, handling: Callable[[Any], Any]) -> None:
    """Evaluates one computed buffer and writes its elements; `handling` puts a handler behind `ops.*`.

    Use: `run_loop(graph.operations[0], memory, V.set_ops_handler)`.
    """
    data = buffer.data
    kept = [number(size, memory.symbols) for size in data.get_pointwise_size()]
    rest = [number(size, memory.symbols) for size in data.get_reduction_size()]
    if 0 in kept:
        return
    ops = LoopOps(memory, torch.device(data.get_device()), [*kept, *rest], len(rest))
    groups = [ops.axes[: len(kept)]]
    if data.get_reduction_type():
        groups.append(ops.axes[len(kept) :])
    with handling(ops), _indexing_allowed():
        buffer.get_store_function()(*groups)


@contextlib.contextmanager
def _indexing_allowed() -> Iterator[None]:
    """A layout that is still open may be indexed here: nothing changes it any more."""
    from torch._inductor.ir import FlexibleLayout

    before = FlexibleLayout.allow_indexing
    FlexibleLayout.allow_indexing = True
    try:
        yield
    finally:
        FlexibleLayout.allow_indexing = before
