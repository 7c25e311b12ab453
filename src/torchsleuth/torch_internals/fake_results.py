"""What every node of a graph yields, worked out without computing anything.

A graph whose shapes do not fit together cannot be tried; fake tensors tell that in well under a millisecond
per node. 2.11..2.15: `FakeTensorMode` and `torch.fx.Interpreter` take part alike.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch

from torchsleuth.script_runtime.symbolic_inputs import symbolic_inputs, symbolic_tracing


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
    except Exception as error:  # whatever the graph's functions raise: it is told, never taken for ours
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
