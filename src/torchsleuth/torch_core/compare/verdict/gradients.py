"""Judge the gradients of a compiled function together with its outputs.

The idea: trace forward and backward of the captured graph into one graph of aten operations; that graph has its
own float64 truth and its own rounding noise, so gradients are judged exactly as outputs are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from torchsleuth.torch_core.compare.reference.cloning import clone_inputs
from torchsleuth.torch_core.compare.reference.eager import inlined
from torchsleuth.torch_core.compare.reference.rng import Draw, restore_rng, rng_kept, save_rng
from torchsleuth.torch_core.compare.reference.trees import leaves
from torchsleuth.torch_core.compare.verdict.judge import judge_results
from torchsleuth.torch_core.compare.verdict.limits import Calibration
from torchsleuth.torch_core.compare.verdict.tolerances import Tolerances, measured_tolerances
from torchsleuth.torch_core.compare.verdict.verdict import Verdict, inconclusive


def judge_gradients(
    graph: GraphModule,
    inputs: Sequence[Any],
    compiled: Callable[..., Any],
    *,
    rng_matched: bool = False,
    calibration: Calibration | None = None,
    parameters_of_compiled: Mapping[int, torch.Tensor] | None = None,
    draws: Sequence[Draw] = (),
) -> Verdict:
    """Judge outputs and the gradients of inputs and parameters, for the same random output gradients.

    `compiled` uses the graph's own parameters, as `torch.compile(graph)` does, or those given here by the `id` of the
    graph's own. `draws` is the list that fills with what it draws, if somebody notes that.
    Example: `judge_gradients(graph, [x.requires_grad_()], torch.compile(graph)).kind`.
    """
    start = save_rng()
    # A checkpointed body, run as captured, would draw new random numbers when it is recomputed.
    graph = inlined(graph)
    with rng_kept():
        given = clone_inputs(list(inputs))
        outputs = compiled(*given)
        after, drawn = save_rng(), tuple(draws)
        weights = _output_gradients(outputs)
        used = [(parameters_of_compiled or {}).get(id(p), p) for p in _parameters(graph).values()]
        results = clone_inputs((outputs, _gradients(outputs, weights, given, used)))
        restore_rng(start)
        try:
            joint, everything = _joint_graph(graph, inputs, weights)
        except Exception as error:
            why = f"forward and backward could not be traced together: {type(error).__name__}: {error}"
            return inconclusive(why)
    return judge_results(
        joint,
        everything,
        None,
        results,
        rng_matched=rng_matched,
        rng_state=start,
        rng_after=after,
        drawn=drawn,
        calibration=calibration,
    )


def gradient_tolerances(graph: GraphModule, inputs: Sequence[Any]) -> Tolerances:
    """How far rounding alone moves the outputs of a graph and its inputs' gradients; none where that is not known.

    Example: `gradient_tolerances(graph, [x.requires_grad_()]).by_path["gradients[0]"]`.
    """
    graph = inlined(graph)
    try:
        weights = _output_gradients(graph(*clone_inputs(list(inputs))))
        joint, everything = _joint_graph(graph, inputs, weights)
    except Exception:  # what cannot be traced together is compared by the script's own rule
        return Tolerances()
    found = measured_tolerances(joint, everything)
    return Tolerances({path_of_joint(path): far for path, far in found.by_path.items()}, found.distance)


def path_of_joint(path: str) -> str:
    """What a result of a joint graph is to a person.

    >>> path_of_joint("outputs[0][2]"), path_of_joint("outputs[1][3]"), path_of_joint("inputs[0]")
    ('outputs[2]', 'gradients[3]', 'inputs[0]')
    """
    if path.startswith("outputs[1]"):
        return path.replace("outputs[1]", "gradients", 1)
    return path.replace("outputs[0]", "outputs", 1)


def _joint_graph(
    graph: GraphModule, inputs: Sequence[Any], weights: list[torch.Tensor]
) -> tuple[GraphModule, list[Any]]:
    """Forward and backward as one graph, and its inputs: the graph's own, its parameters, the outputs' gradients."""
    names = list(_parameters(graph))
    wanted = [isinstance(v, torch.Tensor) and v.requires_grad for v in inputs]
    everything = [v.detach() if isinstance(v, torch.Tensor) else v for v in inputs]
    everything += [p.detach() for p in _parameters(graph).values()] + weights

    def joint(*args: Any) -> Any:
        given = [v.detach().requires_grad_() if want else v for v, want in zip(args, wanted)]
        held = [p.detach().requires_grad_() for p in args[len(inputs) : len(inputs) + len(names)]]
        outputs = torch.func.functional_call(graph, dict(zip(names, held)), tuple(given))
        return outputs, _gradients(outputs, list(args[len(inputs) + len(names) :]), given, held)

    return make_fx(joint)(*clone_inputs(everything)), everything


def _parameters(graph: GraphModule) -> dict[str, torch.nn.Parameter]:
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
