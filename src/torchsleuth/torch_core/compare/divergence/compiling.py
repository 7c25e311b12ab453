"""Ways to compile a part of a graph as the graph is compiled: after AOTAutograd, or as Dynamo captured it."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch.fx import GraphModule

from torchsleuth.script_runtime.compiling import aten_compiler, captured_compiler
from torchsleuth.script_runtime.symbolic_inputs import symbolic_inputs
from torchsleuth.torch_core.compare.divergence.parts import Compilers
from torchsleuth.torch_core.tensors import describe_inputs
from torchsleuth.torch_internals.inductor_ir.lowering import interpreted_lowering, without_caches
from torchsleuth.torch_internals.kernel_builds import with_believed_instructions, without_idle_work

AOT_ALONE = "aot_eager_decomp_partition"
"""The backend of torch's that does all of AOTAutograd and hands its graphs to eager's kernels."""

Ambience = Callable[[], contextlib.AbstractContextManager[Any]]
Make = Callable[[GraphModule, Sequence[Any]], Callable[[], Callable[[list[Any]], Any]]]
# Of what Inductor was told about a graph, what holds for its parts as well.
_OF_PARTS = ("is_inference", "is_backward")


def aten_ways(
    kwargs: Mapping[str, Any],
    compiler: Any = None,
    ambience: Ambience = contextlib.nullcontext,
    description: Mapping[str, Any] | None = None,
) -> Compilers:
    """For aten graphs, which go to Inductor or to `compiler`: `aten_ways({}).compiled(part, [x])`.

    `description` is that of the whole graph's inputs, where it is known.
    """
    own = {key: value for key, value in kwargs.items() if key in _OF_PARTS}

    def making(described: Mapping[str, Any] | None) -> Make:
        def make(graph: GraphModule, values: Sequence[Any]) -> Callable[[], Callable[[list[Any]], Any]]:
            given = described or describe_inputs(list(values)).to_json()
            fakes, mode = symbolic_inputs(dict(given), list(values))
            return aten_compiler(copy.deepcopy(graph), fakes, mode, {}, own, compiler)

        return make

    return replace(_ways(making(None), ambience), whole=_ways(making(description), ambience).compiled)


def captured_ways(
    backend: Any, options: Mapping[str, Any], ambience: Ambience = contextlib.nullcontext
) -> Compilers:
    """For captured graphs, which go to `backend`: `captured_ways("inductor", {}).lowered(part, [x])`."""

    def make(graph: GraphModule, values: Sequence[Any]) -> Callable[[], Callable[[list[Any]], Any]]:
        return captured_compiler(copy.deepcopy(graph), list(values), backend, dict(options))

    return _ways(make, ambience)


def _ways(make: Make, ambience: Ambience) -> Compilers:
    def compiled(graph: GraphModule, values: Sequence[Any]) -> Callable[[list[Any]], Any]:
        def build() -> Callable[[list[Any]], Any]:
            compile_it = make(graph, values)
            with ambience(), without_caches(), without_idle_work():
                return compile_it()

        run = with_believed_instructions(build)

        def call(given: list[Any]) -> Any:
            with ambience():
                return run(given)

        return call

    def lowered(graph: GraphModule, values: Sequence[Any]) -> Callable[[list[Any]], Any]:
        with interpreted_lowering():
            return compiled(graph, values)

    return Compilers(compiled, lowered)
