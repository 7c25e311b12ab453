"""Monte-Carlo arithmetic: the float64 graph with a random rounding after every float step.

The idea: round each result to a grid as coarse as the dtype the step has in the original graph, but placed at
random; perturb the inputs of long sums as well. Repeating it measures the rounding noise of the original
precision at every output element, with conditioning, cancellation and equal values in it.
Noisy runs also show how far each compared difference moves (`Decision`). Where it could reach zero, one more run takes
every such decision the other way: whatever changes then in the outputs, a healthy compiler may change too. Of
`relu(x) <= 0` it is `x` that must come near zero: all that was clamped is equal to the bound, and in no doubt.
Random factors are slices of one small pool, so they cost one multiplication.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchsleuth.torch_core.compare.reference import opkinds
from torchsleuth.torch_core.compare.reference.cloning import map_tensors
from torchsleuth.torch_core.compare.reference.float64 import (
    WIDENS,
    Dtypes,
    Findings,
    Float64Run,
    Given,
    Places,
    fetch,
    widen,
)
from torchsleuth.torch_core.compare.reference.opkinds import plain_name
from torchsleuth.torch_core.compare.reference.trees import pieces
from torchsleuth.torch_internals.operators import is_higher_order
from torchsleuth.torch_internals.schemas import may_write, written_arguments

COMPARE = frozenset(["gt", "lt", "ge", "le", "eq", "ne"])

GATE = "threshold_backward"
"""The gradient of a relu in one operation: compares, and lets through or not."""

AT_RISK = 5.0
"""Standard deviations of its noise within which a difference may change its sign: 1 in a million goes further."""


class Decision:
    """One comparison: watches how far its operands lie apart in ordinary runs, so that it knows what is in doubt."""

    def __init__(self) -> None:
        self.seen = 0
        self.first = self.total = self.square = torch.zeros((), device="cpu")

    def watch(self, gap: torch.Tensor) -> None:
        """Folds in how far the operands lay apart in one run."""
        if self.seen == 0:
            self.first, self.total, self.square = gap, torch.zeros_like(gap), torch.zeros_like(gap)
        # Relative to the first run: the spread may be a billion times smaller than the difference itself.
        moved = gap - self.first
        self.total = self.total + moved
        self.square = self.square + moved * moved
        self.seen += 1

    def _risk(self) -> torch.Tensor:
        """How far what was watched may go by rounding."""
        mean = self.total / self.seen
        spread = (self.square / self.seen - mean * mean).clamp_min(0.0)
        if spread.dim():
            spread = torch.maximum(spread, spread.mean(-1, keepdim=True) / 4)
        return AT_RISK * spread.sqrt()

    def stepped(
        self, step: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, source: NoiseSource
    ) -> torch.Tensor:
        """`step(x)` of a function that jumps, like floor; from beyond the jump where `x` may get there in this run."""
        value = step(x)
        if source.is_ordinary:
            self.watch(x)
        if not source.reverse_decisions or self.seen < 2:
            return value
        risk = self._risk()
        above, below = step(x + risk), step(x - risk)
        other = torch.where(above != value, above, below)
        return torch.where(source.reversed_of(other != value), other, value)

    def taken(self, value: Any, left: Any, right: Any, source: NoiseSource) -> Any:
        """What a comparison gave, turned round where rounding could and this run does; an ordinary run is watched."""
        operands = [v for v in (left, right) if isinstance(v, torch.Tensor)]
        if not isinstance(value, torch.Tensor) or not any(v.is_floating_point() for v in operands):
            return value
        if source.is_ordinary:
            self.watch(left - right)
        if not source.reverse_decisions or self.seen < 2:
            return value
        doubtful = (self.first + self.total / self.seen).abs() < self._risk()
        if not isinstance(right, torch.Tensor) and right == 0:
            # A zero that no noise ever moves, like those behind a relu, is one.
            doubtful = doubtful & ((left != 0) | (self.square > 0))
        return value ^ source.reversed_of(doubtful)


def unclamped_operand(left: Any, right: Any) -> Node | None:
    """What a comparison's operand was before it was clamped to the very number it is compared with, if it was."""
    while isinstance(left, Node) and plain_name(left) in ("detach", "alias", "clone") and left.args:
        left = left.args[0]
    if not isinstance(left, Node) or isinstance(right, Node) or right != 0 or plain_name(left) != "relu":
        return None
    before = left.args[0] if left.args else None
    return before if isinstance(before, Node) else None


SHIFTS = 1 << 16
"""Distinct starting points in the pool: two steps see the same factors at the same place once in 65,536."""

FOOTPRINT = 1 << 15
"""Pool elements one step reads, 256 KiB: what stays in the cache costs next to nothing. Larger results see the
pool again, shifted; their means look noisier than they are, which makes the bias test milder, never wrong."""

LANES = 8
"""Partial sums a vectorised sum keeps at least; the error of n terms of one sign grows with sqrt(n) / LANES."""

RUNNING_LANES = 2
"""The same for variances: Inductor's running variance of 1,024 elements errs by 16 half ulps, eager's by 3."""

TRANSCENDENTAL_ULPS = 2.0
"""Half ulps allowed to exp, tanh and the like in float32 and float64, where vector libraries differ."""

ABSOLUTE_ULPS = 4.0
"""Half ulps of 1.0 allowed to bounded functions: Inductor's vectorised erf is off by 4.6e-7 at -0.05."""

ROW_ULPS = 2.0
"""Half ulps that normalisations add to a whole row at once, because its mean and scale are rounded once."""

TF32 = 2.0**-11
"""Half ulp of the 10-bit format tensor cores may read float32 in."""


def half_ulp(dtype: Any) -> float:
    """The largest relative rounding error of a float dtype, 0 for anything else."""
    if not isinstance(dtype, torch.dtype) or not (dtype.is_floating_point or dtype.is_complex):
        return 0.0
    return torch.finfo(dtype).eps / 2


@dataclass(frozen=True)
class Perturbation:
    """What happens around one node: relative error of its result and of its inputs, in its own dtype."""

    result: float = 0.0
    inputs: float = 0.0
    floor: float = 0.0
    rows: float = 0.0
    infinite: bool = False


@dataclass
class NoiseSource:
    """Slices of a pool of random numbers in [-1, 1]; `scale` widens every perturbation.

    With `reverse_decisions` comparisons that rounding may decide either way are decided the other way: all of them, or
    with `reverse_some` every other one. `before_each` is called before each perturbation, and may raise to end the run.
    """

    device: torch.device
    seed: int = 0
    scale: float = 1.0
    reverse_decisions: bool = False
    reverse_some: bool = False
    before_each: Callable[[], None] = lambda: None
    pool: torch.Tensor = field(init=False)
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.pool = torch.empty(0)
        self._factors: dict[tuple[float, float], torch.Tensor] = {}

    @property
    def is_ordinary(self) -> bool:
        """Whether this is a run with noise as it is, neither stronger nor with decisions turned round."""
        return self.scale == 1.0 and not self.reverse_decisions

    def reversed_of(self, doubtful: torch.Tensor) -> torch.Tensor:
        """Which doubtful decisions are turned round in this run."""
        return doubtful & (self.uniform(doubtful.shape) > 0) if self.reverse_some else doubtful

    def factors(self, amplitude: float, shape: torch.Size) -> torch.Tensor:
        """Random factors 1 + amplitude * x of a shape, a view of the pool."""
        key = (amplitude, self.scale)
        window = self._window(shape)
        pool = self._factors.get(key)
        if pool is None:
            pool = self._factors[key] = self.pool * (amplitude * self.scale) + 1.0
        return pool.as_strided(*window)

    def uniform(self, shape: torch.Size) -> torch.Tensor:
        """Random numbers in [-1, 1] of a shape, a view of the pool."""
        window = self._window(shape)
        return self.pool.as_strided(*window)

    def _window(self, shape: torch.Size) -> tuple[torch.Size, tuple[int, ...], int]:
        """Size, strides and offset of a view of the pool; the pool grows if it is too short for it."""
        strides, last = [], 0
        width = 1
        for size in reversed(shape):
            # Dimensions within FOOTPRINT lie one after the other; outer ones overlap, shifted by an odd step.
            step = width if width * size <= FOOTPRINT else max(1, min(width, FOOTPRINT // size)) | 1
            strides.append(step)
            last += step * (size - 1)
            width = max(width, last + 1)
        if self.pool.numel() < last + 1 + SHIFTS:
            generator = torch.Generator("cpu").manual_seed(self.seed)
            drawn = torch.rand(last + 1 + SHIFTS, generator=generator, dtype=torch.float64, device="cpu")
            self.pool = (drawn * 2 - 1).to(self.device)
            self._factors.clear()
        return shape, tuple(reversed(strides)), self.random.randrange(SHIFTS)

    def perturb(self, tensor: torch.Tensor, plan: Perturbation, in_place: bool) -> torch.Tensor:
        """One rounding of a result, as planned."""
        if tensor.dtype not in (torch.float64, torch.complex128) or tensor.layout != torch.strided:
            return tensor
        self.before_each()
        out = self.round(tensor, plan.result, in_place, plan.infinite)
        if plan.floor:
            # Adding and taking away a large number rounds to its ulp: an absolute grid, again a random one.
            large = plan.floor * self.scale * 2.0**53 * self._jitter()
            out.add_(large).sub_(large)
        if plan.rows and tensor.dim() and tensor.numel():
            rows = torch.Size((*tensor.shape[:-1], 1))
            size = torch.linalg.vector_norm(out) / math.sqrt(tensor.numel())
            out.mul_(self.factors(plan.rows, rows)).add_(self.uniform(rows) * (size * plan.rows * self.scale))
        return out

    def round(self, tensor: torch.Tensor, unit: float, in_place: bool, infinite: bool) -> torch.Tensor:
        """Round to a grid of relative spacing 2 * unit that is placed at random for every call.

        Veltkamp's trick: (x - c*x) + c*x keeps the digits of x above the ulp of c*x. Equal values round equally,
        as they do in hardware, so errors that cancel or add up there do so here.
        """
        factor = unit * self.scale * 2.0**53 * self._jitter()
        out = tensor if in_place else tensor.clone()
        # A piece at a time: a second tensor of its size would be the largest thing in memory.
        for (piece,) in pieces(out):
            scaled = piece * factor
            if infinite:
                for part in (scaled.real, scaled.imag) if scaled.is_complex() else (scaled,):
                    part.clamp_(-1e300, 1e300)
            piece.sub_(scaled).add_(scaled)
        return out

    def _jitter(self) -> float:
        # On average a grid 1.2 times as coarse as the format's: what is not modelled needs some room.
        return 2.0 ** self.random.uniform(-0.25, 0.75)

    def spread(self, tensor: torch.Tensor, unit: float) -> torch.Tensor:
        """A copy with independent relative errors at every place, as sums make them."""
        if tensor.dtype not in (torch.float64, torch.complex128) or tensor.layout != torch.strided:
            return tensor
        self.before_each()
        return tensor * self.factors(unit, tensor.shape)


def perturbation(node: Node, dtypes: Dtypes, terms: int) -> Perturbation:
    """How a node rounds in the original precision; `terms` is the length of its sums."""
    if node.op not in ("call_function", "call_method", "call_module"):
        return Perturbation()
    own = widest_unit(dtypes.get(node.name))
    name = opkinds.plain_name(node)
    sums = opkinds.sums(node)
    if own == 0.0 or (name in opkinds.EXACT and not sums) or opkinds.draws(node):
        return Perturbation()
    coming = [half_ulp(dtypes.get(a.name)) for a in node.all_input_nodes]
    if name in opkinds.CONVERT:
        narrows = own > max(coming, default=0.0)
        return Perturbation(own, 0.0, _underflow(dtypes.get(node.name))) if narrows else Perturbation()
    nested = _nested_steps(node)
    if nested:
        # What runs inside is not perturbed one by one: independent errors add up like the root of their number.
        grown = max(own, shortened(own, convolves=False)) * math.sqrt(nested)
        return Perturbation(grown, grown, _underflow(dtypes.get(node.name)))
    precise = own <= half_ulp(torch.float32)
    if not precise:
        # Shorter formats accumulate in float32, whose error vanishes beside the rounding of the result.
        return Perturbation(own, 0.0, _underflow(dtypes.get(node.name)))
    result = own * (TRANSCENDENTAL_ULPS if name in opkinds.TRANSCENDENTAL else 1.0)
    inputs = rows = 0.0
    if name in opkinds.PRODUCT or node.op == "call_module":
        # A module may hold a convolution; it is not looked into.
        convolves = "conv" in name or node.op == "call_module"
        inputs = max(own * math.sqrt(terms), shortened(own, convolves))
    elif sums:
        # Terms of both signs err like noise on each of them, terms of one sign like noise on their sum.
        inputs = own * math.sqrt(terms if name in opkinds.SEQUENTIAL else max(1.0, terms / LANES))
        growth = own * math.sqrt(terms) / (RUNNING_LANES if name in opkinds.VARIANCE else LANES)
        if name in opkinds.NORMALISE:
            rows = own * ROW_ULPS + growth
        else:
            result += growth
    floor = own * ABSOLUTE_ULPS if name in opkinds.BOUNDED else 0.0
    # Powers of two, so that few distinct pools of factors are kept.
    return Perturbation(result, _power_of_two(inputs), floor, _power_of_two(rows))


def _nested_steps(node: Node) -> int:
    """How many calls the graphs have that a node is given (a branch, a loop body); 0 for ordinary nodes."""
    owner = node.graph.owning_module
    if owner is None or not is_higher_order(node.target):
        return 0
    bodies = [fetch(owner, str(a.target)) for a in node.all_input_nodes if a.op == "get_attr"]
    return sum(n.op.startswith("call_") for b in bodies if isinstance(b, GraphModule) for n in b.graph.nodes)


def _power_of_two(value: float) -> float:
    """The smallest power of two that is not below `value`, 0 for 0."""
    return 2.0 ** math.ceil(math.log2(value)) if value else 0.0


def widest_unit(dtypes: Any) -> float:
    """The largest rounding error among the dtypes of a node's results."""
    if isinstance(dtypes, list):
        return max((widest_unit(d) for d in dtypes), default=0.0)
    return half_ulp(dtypes)


def _underflow(dtypes: Any) -> float:
    """The absolute floor, for the only common format that underflows at everyday magnitudes."""
    info = torch.finfo(torch.float16)
    found = dtypes if isinstance(dtypes, list) else [dtypes]
    return info.smallest_normal * info.eps / 2 if torch.float16 in found else 0.0


def shortened(own: float, convolves: bool) -> float:
    """The unit in which float32 products may be read, by the process-wide settings; 0 when not shortened.

    On a GPU torch shortens convolutions unless told not to, and matrix products only when told to.
    """
    if own != half_ulp(torch.float32):
        return 0.0
    precision = torch.get_float32_matmul_precision()
    if precision == "medium":
        return half_ulp(torch.bfloat16)
    allowed = torch.backends.cudnn.allow_tf32 if convolves else torch.backends.cuda.matmul.allow_tf32
    return TF32 if precision == "high" or (allowed and torch.cuda.is_initialized()) else 0.0


class RunWithNoise(Float64Run):
    """A widened graph run with noise between its steps; `source` says how strong it is. Call `run` several times.

    `known` is what a run without noise has found.
    """

    def __init__(
        self,
        wide: GraphModule,
        original: GraphModule,
        dtypes: Dtypes,
        known: Findings,
        given: Given,
        places: Places,
        source: NoiseSource,
    ) -> None:
        super().__init__(wide, original, dtypes, given, places, source.before_each, notes=False)
        self.known, self.source = known, source

    def spread(self, value: Any, unit: float) -> Any:
        """The value with independent relative errors at every place."""
        return map_tensors(value, lambda t: self.source.spread(t, unit))


class NoisyRun(RunWithNoise):
    """With a random rounding after every step. Nodes that fell back before run in their original dtype here."""

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        self.steps = {
            n: _Step(n, self.originals[n.name], self.dtypes, self.known)
            for n in self.graph.nodes
            if n.op.startswith("call_") and not n.meta.get(WIDENS)
        }
        self.held = dict[Node, Any]()
        """What operands of decisions were before they were clamped; the graph itself may not need it so long."""
        self.last_decision = {
            step.unclamped: n for n, step in self.steps.items() if step.unclamped is not None
        }

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self.held.clear()
        return super().run(*args, **kwargs)

    def run_node(self, n: Node) -> Any:
        value = self._with_noise(n, self.steps[n]) if n in self.steps else super().run_node(n)
        if n in self.last_decision:
            self.held[n] = value
        return value

    def _with_noise(self, n: Node, step: _Step) -> Any:
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        falls_back = n.name in self.known.fallbacks
        if n.name in self.given:
            value = self.given[n.name](*args, **kwargs)
            # Not rounded to a grid: that would leave alone whatever happens to lie on it.
            return self.spread(value, widest_unit(self.dtypes.get(n.name))) if falls_back else value
        if step.decision is not None:
            return self._decided(n, step, step.decision, args)
        if falls_back:
            value = self._fall_back(n, self.known.fallbacks[n.name])
        else:
            if step.plan.inputs:
                noisy = {each: self.spread(self.env[each], step.plan.inputs) for each in step.read}
                args = torch.fx.map_arg(n.args, lambda each: noisy.get(each, self.env[each]))
                kwargs = torch.fx.map_arg(n.kwargs, lambda each: noisy.get(each, self.env[each]))
            value = getattr(self, n.op)(n.target, args, kwargs)
            if n.name in self.known.widened:
                value = self.places.to_device(widen(value))
        if not step.plan.result:
            return value
        return map_tensors(value, lambda t: self.source.perturb(t, step.plan, step.fresh))

    def _decided(self, n: Node, step: _Step, decision: Decision, args: tuple) -> Any:
        """A comparison, or the gradient of a relu, which a decision lets through or not."""
        gate = opkinds.plain_name(n) == GATE
        left, right = args[1:3] if gate else args
        before = left
        if step.unclamped is not None:
            before = self.held[step.unclamped]
            if self.last_decision[step.unclamped] is n:
                del self.held[step.unclamped]
        compare: Any = torch.le if gate else n.target
        value = compare(left, right) if callable(compare) else getattr(left, compare)(right)
        value = decision.taken(value, before, right, self.source)
        return torch.where(value, torch.zeros_like(args[0]), args[0]) if gate else value


class _Step:
    """What noise does at one node `n` of a widened graph, which is `was` in the original one."""

    def __init__(self, n: Node, was: Node, dtypes: Dtypes, known: Findings) -> None:
        name = opkinds.plain_name(was)
        plan = perturbation(was, dtypes, known.terms.get(n.name, 1))
        if not plan.inputs and name in opkinds.TIED:
            # Independent errors break exact ties at random, which equal rounding would keep.
            plan = replace(plan, inputs=widest_unit([dtypes.get(a.name) for a in was.all_input_nodes]))
        self.fresh = n.name not in known.aliasing or may_write(was)
        # Only a cast hands on, in float64, what it rounds; a copy of what others hand on would lose later writes to it.
        if not (self.fresh or name in opkinds.CONVERT):
            plan = replace(plan, result=0.0)
        self.plan = replace(plan, infinite=n.name in known.infinite)
        written = () if was.op == "call_module" else written_arguments(was)
        # By place, not by name: an input that is widened late is read through a node of its own.
        self.read = [twin for arg, twin in zip(was.all_input_nodes, n.all_input_nodes) if arg not in written]
        compared = n.args[1:] if name == GATE else n.args if name in COMPARE and n.op != "call_module" else ()
        decides = len(compared) == 2
        self.decision = Decision() if decides else None
        self.unclamped = unclamped_operand(*compared) if decides else None
