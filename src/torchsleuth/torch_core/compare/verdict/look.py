"""Judge one call of a compiled graph beside eager: its results, and its gradients.

A look finds how far results are from eager, and the verdict where that is more than the last bits. It is taken
in a fork of the program, or in a process beside it that was handed the graph and the values of the call.
Of gradients the idea is: trace forward and backward of the captured graph into one graph of aten operations; that graph
has its own float64 truth and its own rounding noise, so gradients are judged exactly as outputs are.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from torchsleuth.script_runtime.compiling import with_reshapes
from torchsleuth.torch_core.compare.reference.cloning import clone_inputs, same_bits
from torchsleuth.torch_core.compare.reference.eager import EagerRun, OtherDraws, handed_over, inlined
from torchsleuth.torch_core.compare.reference.rng import Draw, RngState, restore_rng, rng_kept, save_rng
from torchsleuth.torch_core.compare.reference.trees import leaves, pieces
from torchsleuth.torch_core.compare.verdict.judge import judge_results
from torchsleuth.torch_core.compare.verdict.limits import Calibration
from torchsleuth.torch_core.compare.verdict.verdict import DIVERGED, Verdict, inconclusive
from torchsleuth.torch_internals.modes import Switches
from torchsleuth.torch_internals.schemas import may_write
from torchsleuth.torch_internals.tensors import transforms_ended

Values = tuple[Any, Any]  # inputs and outputs of one call of a graph

# Before a look, as a process tells it to another: how many bytes follow.
HEAD = struct.Struct("<I")
# Why a look came to nothing that is to be asked for again, with copies of what devices hold.
NOT_SHARED = "the memory of its values cannot be shared with another process"
# Units in the last place that fused and unfused code may differ by; beyond that the graph's noise is measured.
LAST_BITS = 2


@dataclass(frozen=True)
class Numbers:
    """The random numbers of one call: where the generators stood before and after it, and what graphs of it drew."""

    before: RngState
    after: RngState
    drawn: list[Draw]


@dataclass(frozen=True)
class Called:
    """A call of a compiled graph: inputs before it, what it gave, and inputs after it where they are compared."""

    before: Sequence[Any]
    result: Any
    after: Sequence[Any]
    numbers: Numbers


@dataclass(frozen=True)
class Handed:
    """A call and its graph as another process is given them; the graph as text, with what that text needs.

    `parameters` are those that want gradients; of each device in use there is a name that no other has (`devices`), and
    what the program took of it at most (`memory`), and what its process holds there now, our copies among it (`held`).
    """

    call: Called | Differentiated
    graph: str
    imports: tuple[str, ...]
    embedded: str
    constants: Mapping[str, torch.Tensor]
    parameters: tuple[str, ...]
    switches: Switches
    devices: Mapping[str, str]
    memory: dict[str, int]
    held: dict[str, int]


@dataclass(frozen=True)
class Look:
    """What came of looking at a call of a graph: how far leaves are from eager, and the verdict where any is.

    `ones` says for each tensor that eager returns where that very tensor is met first.
    """

    apart: Mapping[str, float] = field(default_factory=dict)
    verdict: Verdict | None = None
    ones: Mapping[str, str] | None = None
    why_not: str | None = None


def looked_at(graph: GraphModule, call: Called | Differentiated) -> Look:
    """How far a call is from the graph run in eager, judged against float64 where that is more than the last bits.

    Raises what the graph raises here: a hook on a gradient, say, may do so in a run without any.
    """
    if isinstance(call, Differentiated):
        return _gradients_looked_at(graph, call)
    with rng_kept():
        eager = with_reshapes(graph)
        expected, values = _in_eager(eager, call.before, call.numbers)
        ones = firsts((values, expected)) if call.after else None
        apart = _differences((expected, values if call.after else ()), (call.result, call.after))
        del values
        if not apart:
            return Look(ones=ones)
        verdict = judge_results(
            eager,
            call.before,
            expected,
            call.result,
            mutated_inputs_after=call.after or None,
            rng_state=call.numbers.before,
            rng_after=call.numbers.after,
            drawn=call.numbers.drawn,
        )
        return Look(apart, verdict, ones)


def _gradients_looked_at(graph: GraphModule, call: Differentiated) -> Look:
    with torch.enable_grad(), transforms_ended():
        verdict = judge_differentiated(graph, call)
    far = {
        path_of_joint(leaf.path): abs(leaf.compiled - leaf.eager)
        for leaf in verdict.leaves
        if leaf.kind == DIVERGED and leaf.compiled is not None and leaf.eager is not None
    }
    return Look({path: each for path, each in far.items() if 0 < each < math.inf}, verdict)


def firsts(values: Values) -> dict[str, str]:
    """For each tensor among the outputs, where that very tensor is met first.

    >>> x = torch.ones(2)
    >>> firsts(([x], (x, x + 1)))
    {'outputs[0]': 'inputs[0]', 'outputs[1]': 'outputs[1]'}
    """
    met: dict[int, str] = {}
    found: dict[str, str] = {}
    for label, each in zip(("inputs", "outputs"), values):
        for path, value in leaves(each, label):
            if isinstance(value, torch.Tensor):
                first = met.setdefault(id(value), path)
                if label == "outputs":
                    found[path] = first
    return found


def _in_eager(graph: GraphModule, before: Sequence[Any], numbers: Numbers) -> tuple[Any, Sequence[Any]]:
    """What the graph gives in eager, with the random numbers of the compiled code, and the inputs after it."""
    writes = any(may_write(n) for n in graph.graph.nodes)
    if numbers.drawn:
        flat, values = inlined(graph), clone_inputs(before) if writes else before
        with suppress(OtherDraws):
            return EagerRun(flat, handed_over(flat, numbers.drawn)).run(*values), values
    values = clone_inputs(before) if writes else before
    restore_rng(numbers.before)
    with transforms_ended():
        return graph(*values), values


def _differences(expected: tuple[Any, Any], got: tuple[Any, Any]) -> dict[str, float]:
    """How far each leaf of outputs and inputs is from eager's, where that is more than the last bits."""
    found: dict[str, float] = {}
    for label, want, have in zip(("outputs", "inputs"), expected, got):
        wanted, had = dict(leaves(want, label)), dict(leaves(have, label))
        for path in wanted.keys() | had.keys():
            far = _distance(wanted.get(path), had.get(path))
            if far > 0:
                found[path] = far
    return found


def _distance(a: Any, b: Any) -> float:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return 0.0 if isinstance(a, torch.Tensor) == isinstance(b, torch.Tensor) else 1.0
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return 1.0
    if a.numel() == 0 or same_bits(a, b):
        return 0.0
    if not (a.is_floating_point() or a.is_complex()):
        return float((a != b).sum())
    if a.layout != torch.strided or b.layout != torch.strided:
        a, b = a.to_dense(), b.to_dense()
    return max(_beyond_last_bits(*pair) for pair in pieces(a.detach(), b.detach()))


def _beyond_last_bits(a: torch.Tensor, b: torch.Tensor) -> float:
    wide = torch.complex128 if a.is_complex() else torch.float64
    far = (a.to(wide) - b.to(wide)).abs()
    agree = (a == b) | (torch.isnan(a) & torch.isnan(b))
    agree |= torch.isfinite(far) & (far <= LAST_BITS * torch.finfo(a.dtype).eps * a.to(wide).abs())
    return min(float(torch.nan_to_num(far, nan=math.inf).masked_fill_(agree, 0.0).max()), 1e300)


# ---- gradients


def judge_gradients(
    graph: GraphModule,
    inputs: Sequence[Any],
    compiled: Callable[..., Any],
    *,
    rng_matched: bool = False,
    calibration: Calibration | None = None,
    draws: Sequence[Draw] = (),
) -> Verdict:
    """Judge outputs and the gradients of inputs and parameters, for the same random output gradients.

    `compiled` uses the graph's own parameters, as `torch.compile(graph)` does; `draws` fills with what it draws.
    Example: `judge_gradients(graph, [x.requires_grad_()], torch.compile(graph)).kind`.
    """
    call = differentiated(graph, inputs, compiled, draws=draws)
    call = replace(call, results=clone_inputs(call.results))  # which another run may overwrite
    return judge_differentiated(graph, call, rng_matched=rng_matched, calibration=calibration)


@dataclass(frozen=True)
class Differentiated:
    """One call of a compiled graph with its backward: the inputs before it, the gradients that its outputs were given,
    outputs and gradients that it gave, and the random numbers."""

    inputs: Sequence[Any]
    weights: list[torch.Tensor]
    results: Any
    before: RngState
    after: RngState
    drawn: Sequence[Draw]


def differentiated(
    graph: GraphModule,
    inputs: Sequence[Any],
    compiled: Callable[..., Any],
    *,
    parameters_of_compiled: Mapping[int, torch.Tensor] | None = None,
    draws: Sequence[Draw] = (),
) -> Differentiated:
    """Calls `compiled` on copies, and its backward: `differentiated(graph, [x], torch.compile(graph))`.

    Where it uses other parameters than the graph's own, they are given by the `id` of those.
    """
    graph = inlined(graph)
    start = save_rng()
    with rng_kept():
        given = clone_inputs(list(inputs))
        outputs = compiled(*given)
        after, drawn = save_rng(), tuple(draws)
        weights = _output_gradients(outputs)
        used = [(parameters_of_compiled or {}).get(id(p), p) for p in parameters_of(graph).values()]
        results = outputs, _gradients(outputs, weights, given, used)
    return Differentiated(inputs, weights, results, start, after, drawn)


def judge_differentiated(
    graph: GraphModule,
    call: Differentiated,
    *,
    rng_matched: bool = False,
    calibration: Calibration | None = None,
) -> Verdict:
    """Judges outputs and gradients of a call: `judge_differentiated(graph, differentiated(graph, [x], compiled))`."""
    with rng_kept():
        restore_rng(call.before)
        try:
            joint, everything = joint_graph(graph, call.inputs, call.weights)
        except Exception as error:
            why = f"forward and backward could not be traced together: {type(error).__name__}: {error}"
            return inconclusive(why)
    return judge_results(
        joint,
        everything,
        None,
        call.results,
        rng_matched=rng_matched,
        rng_state=call.before,
        rng_after=call.after,
        drawn=call.drawn,
        calibration=calibration,
    )


def path_of_joint(path: str) -> str:
    """What a result of a joint graph is to a person.

    >>> path_of_joint("outputs[0][2]"), path_of_joint("outputs[1][3]"), path_of_joint("inputs[0]")
    ('outputs[2]', 'gradients[3]', 'inputs[0]')
    """
    if path.startswith("outputs[1]"):
        return path.replace("outputs[1]", "gradients", 1)
    return path.replace("outputs[0]", "outputs", 1)


def joint_graph(
    graph: GraphModule, inputs: Sequence[Any], weights: list[torch.Tensor] | None = None
) -> tuple[GraphModule, list[Any]]:
    """Forward and backward as one graph, and its inputs: the graph's own, its parameters, the outputs' gradients.

    Used as `joint, everything = joint_graph(gm, [x])`.
    """
    # A checkpointed body, run as captured, would draw new random numbers when it is recomputed.
    graph = inlined(graph)
    if weights is None:
        weights = _output_gradients(graph(*clone_inputs(list(inputs))))
    names = list(parameters_of(graph))
    wanted = [isinstance(v, torch.Tensor) and v.requires_grad for v in inputs]
    everything = [v.detach() if isinstance(v, torch.Tensor) else v for v in inputs]
    everything += [p.detach() for p in parameters_of(graph).values()] + weights

    def joint(*args: Any) -> Any:
        given = [v.detach().requires_grad_() if want else v for v, want in zip(args, wanted)]
        held = [p.detach().requires_grad_() for p in args[len(inputs) : len(inputs) + len(names)]]
        outputs = torch.func.functional_call(graph, dict(zip(names, held)), tuple(given))
        return outputs, _gradients(outputs, list(args[len(inputs) + len(names) :]), given, held)

    return make_fx(joint)(*clone_inputs(everything)), everything


def parameters_of(graph: GraphModule) -> dict[str, torch.nn.Parameter]:
    """Those that want a gradient, in the order in which their gradients are given."""
    return {name: p for name, p in graph.named_parameters() if p.requires_grad}


def _differentiable(outputs: Any) -> list[torch.Tensor]:
    return [t for _, t in leaves(outputs) if isinstance(t, torch.Tensor) and t.requires_grad]


def _output_gradients(outputs: Any) -> list[torch.Tensor]:
    """A fixed random gradient for every differentiable output: a sum would hide errors that cancel."""
    generator = torch.Generator("cpu").manual_seed(0)
    return [
        torch.randn(t.shape, generator=generator, dtype=torch.float32, device="cpu").to(t.device, t.dtype)
        for t in _differentiable(outputs)
    ]


def _gradients(
    outputs: Any, weights: list[torch.Tensor], inputs: Sequence[Any], parameters: list[torch.Tensor]
) -> list[Any]:
    sources = [v for v in inputs if isinstance(v, torch.Tensor) and v.requires_grad] + parameters
    if not sources or not weights:
        return []
    return list(torch.autograd.grad(_differentiable(outputs), sources, weights, allow_unused=True))
