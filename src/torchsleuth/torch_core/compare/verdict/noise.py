"""Monte-Carlo arithmetic: the float64 graph with a random rounding after every float step.

The idea: round each result to a grid as coarse as the dtype the step has in the original graph, but placed at
random; perturb the inputs of long sums as well. Repeating it measures the rounding noise of the original
precision at every output element, with conditioning, cancellation and equal values in it.
Random factors are slices of one small pool, so they cost one multiplication.
"""

from __future__ import annotations

import copy
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
    HERE,
    WIDENS,
    Dtypes,
    Findings,
    Places,
    fetch,
    narrow,
    widen,
)
from torchsleuth.torch_core.compare.reference.trees import CHUNK, pieces
from torchsleuth.torch_core.compare.verdict.decisions import (
    COMPARE,
    GATE,
    Decision,
    comparison,
    unclamped_operand,
)
from torchsleuth.torch_internals.schemas import may_write, written_arguments

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


def smallest_step(dtype: torch.dtype) -> float:
    """Half the distance between zero and the next float: the rounding error near underflow."""
    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps / 2


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

    @property
    def reversal(self) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """Which doubtful decisions are turned round in this run; None where none is."""
        if not self.reverse_decisions:
            return None
        return (
            (lambda doubtful: doubtful & (self.uniform(doubtful.shape) > 0))
            if self.reverse_some
            else lambda d: d
        )

    def _grow(self, size: int) -> None:
        generator = torch.Generator("cpu").manual_seed(self.seed)
        self.pool = (torch.rand(size, generator=generator, dtype=torch.float64, device="cpu") * 2 - 1).to(
            self.device
        )
        self._factors.clear()

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
            self._grow(last + 1 + SHIFTS)
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
        for (piece,) in pieces(out, size=CHUNK):
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
    if owner is None or not opkinds.is_higher_order(node):
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
    if isinstance(dtypes, list):
        return max((_underflow(d) for d in dtypes), default=0.0)
    return smallest_step(torch.float16) if dtypes == torch.float16 else 0.0


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


def noisy_graph(
    wide: GraphModule,
    original: GraphModule,
    dtypes: Dtypes,
    findings: Findings,
    source: NoiseSource,
    substitutes: dict[str, Callable[..., Any]],
    places: Places = HERE,
) -> GraphModule:
    """A copy of the widened graph with perturbations written between its nodes.

    Nodes that fell back run in their original dtype; `substitutes` replace random nodes by name.
    """
    twin = copy.deepcopy(wide.graph)
    attributes = {
        str(n.target): fetch(wide, str(n.target)) for n in twin.nodes if n.op in ("get_attr", "call_module")
    }
    by_name = {n.name: n for n in original.graph.nodes}
    for node in list(twin.nodes):
        if node.meta.get(WIDENS):
            continue
        if node.name in substitutes:
            node.op, node.target = "call_function", _named(substitutes[node.name], f"draw_{node.name}")
            if node.name in findings.fallbacks:
                # Not rounded to a grid: that would leave alone whatever happens to lie on it.
                _append(twin, node, _spreader(source, widest_unit(dtypes.get(node.name))))
            continue
        if opkinds.plain_name(node) == GATE:
            before = unclamped_operand(node, opkinds.plain_name, *node.args[1:])
            node.op, node.target = "call_function", _gate(source, node.name)
            node.args = node.args if before is None else (*node.args, before)
            continue
        if opkinds.plain_name(node) in COMPARE and len(node.args) == 2 and node.op != "call_module":
            before = unclamped_operand(node, opkinds.plain_name, *node.args)
            node.op, node.target = "call_function", _decider(source, node.target, node.name)
            node.args = node.args if before is None else (*node.args, before)
            continue
        was = by_name[node.name]
        plan = perturbation(was, dtypes, findings.terms.get(node.name, 1))
        if node.name in findings.fallbacks:
            _run_as_it_was(twin, node, was, dtypes, attributes, original, places)
        elif plan.inputs:
            _perturb_inputs(twin, node, was, _spreader(source, plan.inputs))
        elif opkinds.plain_name(node) in opkinds.TIED:
            # Independent errors break exact ties at random, which equal rounding would keep.
            unit = widest_unit([dtypes.get(a.name) for a in was.all_input_nodes])
            if unit:
                _perturb_inputs(twin, node, was, _spreader(source, unit))
        after: list[Callable[..., Any]] = []
        if node.name in findings.fallbacks or node.name in findings.widened:
            after.append(_widener(places))
        fresh = node.name not in findings.aliasing or may_write(was)
        # Only a cast hands on, in float64, what it rounds; a copy of what others hand on would lose later writes to it.
        if plan.result and (fresh or opkinds.plain_name(was) in opkinds.CONVERT):
            plan = replace(plan, infinite=node.name in findings.infinite)
            after.append(_perturber(source, plan, fresh))
        for step in after:
            _append(twin, node, step)
    return GraphModule(attributes, twin)


def _perturber(source: NoiseSource, plan: Perturbation, in_place: bool) -> Callable[[Any], Any]:
    def perturb(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return source.perturb(value, plan, in_place)
        return map_tensors(value, lambda t: source.perturb(t, plan, in_place))

    return perturb


def _decider(source: NoiseSource, target: Any, name: str) -> Callable[..., Any]:
    decision, compare = Decision(), comparison(target)

    def decide(left: Any, right: Any, unclamped: Any = None, **kwargs: Any) -> Any:
        before = left if unclamped is None else unclamped
        return decision.taken(compare(left, right), before, right, source.reversal, source.is_ordinary)

    return _named(decide, f"decide_{name}")


def _gate(source: NoiseSource, name: str) -> Callable[..., Any]:
    """The gradient of a relu, which a decision lets through or not."""
    decide = _decider(source, torch.le, name)

    def gate(gradient: torch.Tensor, result: torch.Tensor, bound: Any, unclamped: Any = None) -> torch.Tensor:
        return torch.where(decide(result, bound, unclamped), torch.zeros_like(gradient), gradient)

    return _named(gate, f"gate_{name}")


def _spreader(source: NoiseSource, unit: float) -> Callable[[Any], Any]:
    def spread(value: Any) -> Any:
        return map_tensors(value, lambda t: source.spread(t, unit))

    return spread


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """FX writes a call by the function's name, so every closure carries its own."""
    function.__name__ = function.__qualname__ = name
    return function


def _append(graph: torch.fx.Graph, node: Node, step: Callable[[Any], Any]) -> None:
    users = list(node.users)
    last = node
    # A step already appended to this node is passed its result, so steps run in the order they were added.
    while len(last.users) == 1 and (only := next(iter(last.users))).meta.get("appended_to") == node.name:
        last = only
        users = list(last.users)
    with graph.inserting_after(last):
        added = graph.call_function(_named(step, f"round_{node.name}"), (last,))
    added.meta["appended_to"] = node.name
    for user in users:
        user.replace_input_with(last, added)


def _perturb_inputs(graph: torch.fx.Graph, node: Node, was: Node, step: Callable[[Any], Any]) -> None:
    """Lets a node read perturbed copies of its inputs, except of those it writes to."""
    swaps: dict[Node, Node] = {}
    written = () if was.op == "call_module" else written_arguments(was)
    # Steps may already stand between this node and its inputs, so inputs are matched by place.
    for before, arg in zip(was.all_input_nodes, node.all_input_nodes):
        if before in written:
            continue
        with graph.inserting_before(node):
            swaps[arg] = graph.call_function(_named(step, f"round_into_{node.name}"), (arg,))
    node.args = torch.fx.map_arg(node.args, lambda n: swaps.get(n, n))
    node.kwargs = torch.fx.map_arg(node.kwargs, lambda n: swaps.get(n, n))


def _run_as_it_was(
    graph: torch.fx.Graph,
    node: Node,
    was: Node,
    dtypes: Dtypes,
    attributes: dict[str, Any],
    original: GraphModule,
    places: Places,
) -> None:
    """Round the node's inputs to their original dtypes and call the original operation."""
    swaps: dict[str, Node] = {}
    # Steps may already stand between this node and its inputs, so inputs are matched by place.
    for before, arg in zip(was.all_input_nodes, node.all_input_nodes):
        with graph.inserting_before(node):
            if arg.op == "get_attr" and isinstance(attributes.get(str(arg.target)), torch.nn.Module):
                name = f"as_it_was_{str(arg.target).replace('.', '_')}"
                attributes[name] = fetch(original, str(arg.target))
                swaps[before.name] = graph.get_attr(name)
            else:
                step = _narrower(dtypes.get(before.name), places)
                swaps[before.name] = graph.call_function(_named(step, f"narrow_{before.name}"), (arg,))
    node.target = was.target
    node.args = torch.fx.map_arg(was.args, lambda n: swaps[n.name])
    node.kwargs = torch.fx.map_arg(was.kwargs, lambda n: swaps[n.name])


def _narrower(dtypes: Any, places: Places) -> Callable[[Any], Any]:
    def narrow_to(value: Any) -> Any:
        return places.moved_home(narrow(value, dtypes))

    return narrow_to


def _widener(places: Places) -> Callable[[Any], Any]:
    def widen_again(value: Any) -> Any:
        return places.moved_here(widen(value))

    return widen_again
