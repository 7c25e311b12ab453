"""What fake tensors say before anything is computed: of one operator call, or of every node of a graph.

A fake tensor has a shape and no values; an operator's fake kernel works out what the real one would return, in well
under a millisecond.

Versions: `FakeTensorMode` and `torch.fx.Interpreter` take part alike in 2.11..2.15.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree

from torchsleuth.script_runtime.symbolic_inputs import symbolic_inputs, symbolic_tracing
from torchsleuth.torch_internals.modes import outside_all_modes

# A fake kernel that raises one of these says "it depends on the values" or "I cannot", which is no mismatch.
_NO_ANSWER = (
    "UnsupportedFakeTensorException",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "UnsupportedOperatorException",
    "UnsupportedMutationAliasingException",
    "GuardOnDataDependentSymNode",
    "PendingUnbackedSymbolNotFound",
)


@dataclass(frozen=True)
class FakeAnswer:
    """What the fake kernel returned, the fake inputs it was given, or the exception it raised."""

    outputs: Any = None
    inputs: Any = None
    error: Exception | None = None


def fake_answer(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> FakeAnswer | None:
    """Runs the fake kernel of `op` on fakes of these arguments; None where it has no answer to give.

    >>> fake_answer(torch.ops.aten.relu.default, (torch.ones(2),), {}).outputs.shape
    torch.Size([2])
    """
    fake_tensor = importlib.import_module("torch._subclasses.fake_tensor")
    symbolic = importlib.import_module("torch.fx.experimental.symbolic_shapes")

    def fake_of(value: Any) -> Any:
        return mode.from_tensor(value, static_shapes=True) if isinstance(value, torch.Tensor) else value

    with outside_all_modes(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mode = fake_tensor.FakeTensorMode(shape_env=symbolic.ShapeEnv())
        try:
            with mode:
                inputs = _pytree.tree_map(fake_of, (tuple(args), kwargs))
                return FakeAnswer(op(*inputs[0], **inputs[1]), inputs)
        except Exception as error:
            return None if type(error).__name__ in _NO_ANSWER else FakeAnswer(error=error)


def fake_results(
    graph: torch.fx.GraphModule, described: Mapping[str, Any], numbers: list
) -> tuple[dict[str, Any], Exception | None]:
    """The fake result of each node by name, and what stopped the run, if anything did.

    `described` is the JSON form of an `InputsDescription`; `numbers` holds the plain inputs at their places.
    """
    fakes, mode = symbolic_inputs(dict(described), numbers)
    found: dict[str, Any] = {}

    class Steps(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            found[n.name] = result = super().run_node(n)
            return result

    steps = Steps(graph)
    steps.extra_traceback = False
    # It writes a traceback for every graph that does not fit; a search asks about hundreds.
    log = logging.getLogger("torch._subclasses.fake_tensor")
    silent, log.disabled = log.disabled, True
    try:
        with symbolic_tracing(mode):
            steps.run(*fakes)
    except Exception as error:  # whatever the graph's functions raise: it is an answer, never taken for ours
        return found, error
    finally:
        log.disabled = silent
    return found, None


def forms_of(results: Mapping[str, Any]) -> dict[str, str]:
    """Dtype and shape of each tensor among the results, as text: equal for those that look alike.

    >>> forms_of({"x": torch.ones(2, 3)})
    {'x': "torch.float32('2', '3')"}
    """
    return {
        name: f"{value.dtype}{tuple(map(str, value.shape))}"
        for name, value in results.items()
        if isinstance(value, torch.Tensor)
    }
