"""How far any textbook way of computing a graph may lie from the truth: the yardstick of a second opinion.

The idea: every operator is taken apart into its primitive steps (a batch norm into sums, differences and products,
the gradient of hardswish into comparisons), and each step errs as the least careful of the accepted ways does in the
working precision: a sum as one running total does, by half a step of each partial sum; a variance as one pass over
squares does; a decision within rounding of its corner falls either way. So what cancels keeps the noise of its terms.
It costs several times the noise of a first look, and is asked only where that found something.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from torchsleuth.torch_core.compare.reference import opkinds
from torchsleuth.torch_core.compare.reference.cloning import map_tensors
from torchsleuth.torch_core.compare.reference.float64 import KERNEL_ERRORS, MEMORY_ERRORS, Dtypes
from torchsleuth.torch_core.compare.verdict.noise import (
    COMPARE,
    Decision,
    Perturbation,
    RunWithNoise,
    half_ulp,
    shortened,
    widest_unit,
)
from torchsleuth.torch_internals.decompositions import decomposition_of
from torchsleuth.torch_internals.modes import watching_ops
from torchsleuth.torch_internals.operators import is_view, short_name

LIBRARY_ULPS = 4.0
"""Half ulps that a vector library's exp, log or sine may be off by, relative or, of bounded functions, of 1.0."""

ALIKE, EQUAL = 1 / 16, 1 / 4
"""Of the sum of all half steps, what terms and what equal terms are off by: 4,608 equal ones were off by 560 of 2,304.

At the limit of ten times the noise a quarter is all of them, as far off as a running total can be."""

REPEATED, SAME = 0.1, 1e-5
"""Terms are equal where so many are, up to that share of them, what the term before was."""

CHAIN = 4096
"""Terms that are added to one running total at most; longer sums are made of several everywhere."""

LONGEST = 1 << 22
"""Elements of an operand up to which partial sums are taken one by one; beyond, their usual size is."""

BY_CHANCE, KEPT = 0.25, 0.25
"""How often a result is off by chance, and how often one in a short format is not rounded; else it is, to a grid."""

STRONGER = 3.0
"""How much stronger the second kind of noise is: less than in a first look, whose usual noise is more careful."""

WIDE = (torch.float64, torch.complex128)


@dataclass(frozen=True)
class Textbook:
    """How many runs a second opinion makes: with usual noise, with stronger noise, with every other decision turned."""

    usual: int
    amplified: int
    turned: int


FEW, ALL = Textbook(3, 1, 1), Textbook(8, 4, 3)
"""What is wrong beyond doubt shows in few runs."""


class TextbookRun(RunWithNoise):
    """With textbook noise in every primitive step. Decisions are known to be in doubt from the second run on."""

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        self.apart = True
        self.unit = 0.0
        """Half an ulp of the format that the present node computes in; 0 where nothing rounds."""
        self.decisions: list[Decision] = []
        self.made = 0

    def take_whole(self) -> None:
        """From now on no operator is taken apart: what torch takes one apart into does not compute what it does."""
        self.apart = False
        self.decisions.clear()

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self.made = 0
        return super().run(*args, **kwargs)

    def run_node(self, n: Node) -> Any:
        if not n.op.startswith("call_"):
            return super().run_node(n)
        own = widest_unit(self.dtypes.get(n.name))
        # Shorter formats compute in float32 and round the result.
        own = own if self.source.scale else 0.0
        self.unit = 0.0 if opkinds.draws(n) else min(own, half_ulp(torch.float32))
        with watching_ops(self._step):
            value = super().run_node(n)
        if own <= self.unit or not _rounds(n, own, self.dtypes) or n.name in self.known.aliasing:
            return value
        return self._rounded(value, own, fallback=n.name in self.known.fallbacks)

    def _rounded(self, value: Any, own: float, fallback: bool) -> Any:
        """A result in a short format: rounded as eager does, kept as it is, as fused code does, or off by chance.

        Eager rounds twice to the same grid, which moves nothing the second time; whoever rounds once is right as well.
        """
        choice = self.source.random.random()
        if fallback or choice < BY_CHANCE:
            return self.spread(value, own)
        if choice < BY_CHANCE + KEPT:
            return value
        return map_tensors(value, lambda t: self.source.perturb(t, Perturbation(own, infinite=True), False))

    def _step(self, op: Any, args: tuple, kwargs: dict[str, Any], call: Callable[[], Any]) -> Any:
        """One operator below autograd: taken apart, or run with the noise of its kind."""
        name = short_name(op).rstrip("_")
        if name in COMPARE and len(args) == 2:
            return self._decided(call(), *args)
        if name in JUMPS and args[0].dtype == torch.float64:
            return self._decision().stepped(lambda x: op(x, *args[1:], **kwargs), args[0], self.source)
        if self.apart and name not in PRIMITIVE:
            whole = CORNERS.get(name) or decomposition_of(op)
            if whole is not None:
                try:
                    with watching_ops(self._step):
                        value = whole(*args, **kwargs)
                except MEMORY_ERRORS:
                    raise
                except (AssertionError, *KERNEL_ERRORS):
                    value = NotImplemented  # it refuses float64, which the operator itself may not
                if value is not NotImplemented:
                    return value
        if not self.unit:
            return call()
        terms = 1.0
        if name in opkinds.PRODUCT:
            terms = _terms_of_product(name, args)
            # Who rounds factors to a shorter format is off by half a step of it, who cuts them off by a whole one.
            unit = max(self.unit * math.sqrt(terms), 2 * shortened(self.unit, "conv" in name))
            value = op(*self.spread(args, unit), **kwargs)
        else:
            value = call()
        if name == "relu":
            value.before_clamping = args[0]
        elif name in ("detach", "alias", "clone") and hasattr(args[0], "before_clamping"):
            value.before_clamping = args[0].before_clamping
        errors = SUMS[name](args, kwargs, value) if name in SUMS else None
        if name in opkinds.CONVERT or is_view(op) or (name in opkinds.EXACT and errors is None):
            return value
        self._add(value, errors)
        unit = self.unit * (
            LIBRARY_ULPS if name in opkinds.TRANSCENDENTAL else max(1.0, math.sqrt(terms) / 2)
        )
        plan = Perturbation(
            unit, floor=self.unit * LIBRARY_ULPS if name in opkinds.BOUNDED else 0.0, infinite=True
        )
        if self.source.random.random() < BY_CHANCE:
            # A value that lies on the grid is not moved by rounding it to that.
            map_tensors(value, lambda t: t.mul_(self.source.factors(unit, t.shape)) if t.dtype in WIDE else t)
        map_tensors(value, lambda t: self.source.perturb(t, plan, True))
        return value

    def _add(self, value: Any, errors: Any) -> None:
        """Adds to results, in place, random parts of what they may err by."""
        if errors is None:
            return
        if isinstance(value, (tuple, list)):
            for each, error in zip(value, errors):
                self._add(each, error)
        elif isinstance(value, torch.Tensor) and value.dtype in WIDE:
            errors = errors * (self.unit * self.source.scale) * self.source.uniform(errors.shape)
            value.add_(errors.nan_to_num_(0.0, 0.0, 0.0))

    def _decision(self) -> Decision:
        """The one that is made next in this run, as it was watched in those before."""
        if len(self.decisions) == self.made:
            self.decisions.append(Decision())
        self.made += 1
        return self.decisions[self.made - 1]

    def _decided(self, value: Any, left: Any, right: Any) -> Any:
        clamped = not isinstance(right, torch.Tensor) and right == 0
        before = getattr(left, "before_clamping", left) if clamped else left
        return self._decision().taken(value, before, right, self.source)


def _rounds(n: Node, own: float, dtypes: Dtypes) -> bool:
    """Whether a node rounds its result to a format shorter than it computes in."""
    name = opkinds.plain_name(n)
    if name in opkinds.CONVERT:
        return own > max((widest_unit(dtypes.get(a.name)) for a in n.all_input_nodes), default=0.0)
    return (name not in opkinds.EXACT or opkinds.sums(n)) and not opkinds.draws(n)


def _terms_of_product(name: str, args: tuple) -> float:
    """How many products are added up into one element, at most."""
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    if name in ("mm", "bmm", "matmul", "mv", "dot"):
        return tensors[0].shape[-1]
    if name in ("addmm", "baddbmm", "addmv", "addbmm"):
        return tensors[1].shape[-1]
    if name == "convolution":
        return max(tensors[1].numel() // size for size in tensors[1].shape[:2])
    if name == "convolution_backward":
        gradient, _, weight = tensors[:3]
        return max(gradient.numel() // gradient.shape[1], weight.numel() // min(weight.shape[:2]))
    return max((max(t.shape, default=1) for t in tensors), default=1)


def _running_total(x: torch.Tensor, dims: list[int]) -> torch.Tensor:
    """What a running total over these dimensions may err by: half a step of each partial sum, adding up like chance.

    Of equal terms they do not: each addition is off the same way until the total has doubled. A part of that is added.

    >>> _running_total(torch.tensor([1.0, -1.0, 1.0, -1.0]).double(), [0])
    tensor(1.5392, dtype=torch.float64)
    """
    kept = [d for d in range(x.dim()) if d not in dims]
    rows = x.permute(*kept, *dims).reshape(*(x.shape[d] for d in kept), -1)
    count = rows.shape[-1]
    if x.numel() <= LONGEST:
        partial = rows.cumsum(-1)
        by_chance = torch.linalg.vector_norm(partial, dim=-1)
        alike = partial.abs().sum(-1)
    else:
        size = torch.maximum(rows.sum(-1).abs(), torch.linalg.vector_norm(rows, dim=-1))
        by_chance, alike = size * math.sqrt(count), size * count
    before, after = rows[..., :-1], rows[..., 1:]
    repeated = ((after - before).abs() <= SAME * before.abs()).double().sum(-1) > REPEATED * count
    share = ALIKE + (EQUAL - ALIKE) * repeated.double()
    return by_chance + alike * share * min(1.0, CHAIN / count)


def _dims(args: tuple, kwargs: dict[str, Any]) -> list[int]:
    """The dimensions that a reduction takes together, its second argument; all where it names none."""
    x, dim = args[0], args[1] if len(args) > 1 else kwargs.get("dim")
    if isinstance(dim, bool) or dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(x.dim()))
    return sorted(d % max(x.dim(), 1) for d in (dim if isinstance(dim, (list, tuple)) else [dim]))


def _sum(args: tuple, kwargs: dict[str, Any], value: torch.Tensor) -> torch.Tensor | None:
    x = args[0]
    if x.dtype not in WIDE or not x.numel():
        return None
    return _running_total(x, _dims(args, kwargs)).reshape(value.shape)


def _mean(args: tuple, kwargs: dict[str, Any], value: torch.Tensor) -> torch.Tensor | None:
    total = _sum(args, kwargs, value)
    return None if total is None else total * (value.numel() / args[0].numel())


def _variance(args: tuple, kwargs: dict[str, Any], value: torch.Tensor) -> torch.Tensor | None:
    """In one pass: the mean of the squares less the square of the mean, both of running totals."""
    x = args[0]
    if not x.numel():
        return None
    dims = _dims(args, kwargs)
    plain = _running_total(x, dims).reshape(value.shape)
    squares = _running_total(x.abs().square(), dims).reshape(value.shape)
    mean = x.mean(dims).abs().reshape(value.shape)
    return (squares + 2 * mean * plain) * (value.numel() / x.numel())


def _deviation(args: tuple, kwargs: dict[str, Any], value: torch.Tensor) -> torch.Tensor | None:
    errors = _variance(args, kwargs, value)
    return None if errors is None else errors / (2 * value)


def _with_mean(error: Callable[..., torch.Tensor | None]) -> Callable[..., Any]:
    return lambda args, kwargs, value: (error(args, kwargs, value[0]), _mean(args, kwargs, value[1]))


def _cumulative(args: tuple, kwargs: dict[str, Any], value: torch.Tensor) -> torch.Tensor:
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    return value.abs().square().cumsum(dim).sqrt() if value.dim() else value.abs()


def _bias_of_convolution(args: tuple, kwargs: dict[str, Any], value: Any) -> Any:
    """The gradient of the bias is the only one of the three that is no product: a sum over all places."""
    gradient = args[0]
    dims = [d for d in range(gradient.dim()) if d != 1]
    return None, None, _running_total(gradient, dims) if value[2] is not None else None


def _scattered(args: tuple, kwargs: dict[str, Any], value: torch.Tensor) -> torch.Tensor | None:
    """Terms added where they meet, in any order, by `scatter_add` or `index_add`."""
    _, dim, index, added = args[:4]
    if added.dtype not in WIDE or added.is_complex() or not value.numel():
        return None
    sizes = torch.zeros_like(value, memory_format=torch.contiguous_format)
    if index.dim() == added.dim() > 1:
        sizes.scatter_add_(dim, index, added.abs())
    else:
        sizes.index_add_(dim, index, added.abs())
    return _in_any_order(sizes, added)


def _accumulated(args: tuple, kwargs: dict[str, Any], value: torch.Tensor) -> torch.Tensor | None:
    """Writes to places that accumulate where they meet; the others are exact."""
    _, indices, added, *rest = args
    if not (rest and rest[0]) or added.dtype not in WIDE or added.is_complex() or not value.numel():
        return None
    sizes = torch.zeros_like(value, memory_format=torch.contiguous_format)
    met = sizes[tuple(slice(None) if index is None else index for index in indices)]
    sizes.index_put_(indices, added.abs().expand_as(met), True)
    return _in_any_order(sizes, added)


def _in_any_order(sizes: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
    """Half of all the sizes for the partial sums of some terms that cancel, and as many of them as meet on average."""
    return sizes * (math.sqrt(max(1.0, added.numel() / sizes.numel())) / 2)


def _transform(args: tuple, kwargs: dict[str, Any], value: torch.Tensor) -> torch.Tensor:
    """A Fourier transform mixes all elements of a row: small results err as large ones do."""
    size = torch.linalg.vector_norm(value.abs()) / math.sqrt(max(value.numel(), 1))
    return (size * math.log2(max(args[0].numel(), 2))).expand(value.shape)


def _beyond(value: torch.Tensor, x: torch.Tensor, bound: float) -> torch.Tensor:
    return torch.where((x >= -bound) & (x <= bound), torch.zeros_like(value), value)


CORNERS: dict[str, Callable[..., torch.Tensor]] = {
    "hardshrink": lambda x, bound=0.5: _beyond(x, x, bound),
    "hardshrink_backward": _beyond,
}
"""Operators with a corner for which torch has no decomposition."""

JUMPS = frozenset(["floor", "ceil", "round", "trunc", "sign"])
"""Functions of one number that jump: which side of it a number falls on is a decision."""

SUMS: dict[str, Callable[[tuple, dict[str, Any], Any], Any]] = {
    "sum": _sum,
    "mean": _mean,
    "var": _variance,
    "std": _deviation,
    "var_mean": _with_mean(_variance),
    "std_mean": _with_mean(_deviation),
    "cumsum": _cumulative,
    "cumprod": _cumulative,
    "logcumsumexp": _cumulative,
    "convolution_backward": _bias_of_convolution,
    **dict.fromkeys(("scatter_add", "index_add"), _scattered),
    **dict.fromkeys(("index_put", "_unsafe_index_put"), _accumulated),
    **dict.fromkeys(("_fft_r2c", "_fft_c2r", "_fft_c2c"), _transform),
}
"""Steps that add up many terms, and what each result may err by, in half ulps of 1."""

PRIMITIVE = (
    frozenset(SUMS)
    | opkinds.EXACT
    | opkinds.CONVERT
    | COMPARE
    | (opkinds.PRODUCT - {"cdist"})
    | {"where", "lift"}
)
"""Operators that are not taken apart."""
