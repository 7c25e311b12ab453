"""AOTAutograd as a building block: its parts are the caller's choice. And traces of `make_fx`.

AOTAutograd hands its compilers an aten graph and calls what they return with one list ("boxed"), which the callee
empties so that inputs can be freed early.

Versions: `aot_autograd` takes the same names in 2.11..2.15; a setting that a release lacks is left alone.
`invoke_subgraph_infer` names a subgraph per trace; where a release lacks it, names are counted here. Where it lacks
`force_compile_during_fx_trace`, which lets torch.compile run inside a trace, the caller is told.
"""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import torch

Boxed = Callable[[list[Any]], Any]
GraphCompiler = Callable[[torch.fx.GraphModule, Sequence[Any]], Boxed]


@dataclass(frozen=True)
class AotPlan:
    """What AOTAutograd shall do: who compiles forward and backward, how they are cut apart, what is decomposed.

    `partition`: "default" saves what the backward needs, "min_cut" recomputes what is cheap, "inductor" is min_cut
    as Inductor asks for it. `checks_ops`: the compilers look for aliases themselves, so torch shall not, which warns or
    raises (where $CI is set) with less to say.
    """

    forward: GraphCompiler
    backward: GraphCompiler | None = None
    partition: Literal["default", "min_cut", "inductor"] = "min_cut"
    inductor_decompositions: bool = False
    keep_input_mutations: bool = True
    checks_ops: bool = False


def through_aot(gm: torch.fx.GraphModule, inputs: Sequence[Any], plan: AotPlan) -> Callable[..., Any]:
    """The graph compiled by AOTAutograd as `plan` says; call the result with the graph's inputs.

    >>> through_aot(gm, [x], AotPlan(run_boxed))(x)
    [tensor([0., 2.])]
    """
    from torch._dynamo.backends.common import aot_autograd

    arguments: dict[str, Any] = {
        "fw_compiler": plan.forward,
        "bw_compiler": plan.backward or plan.forward,
        "inference_compiler": plan.forward,
        "partition_fn": _partitioner(plan.partition),
        "keep_inference_input_mutations": plan.keep_input_mutations,
    }
    if plan.inductor_decompositions:
        # By the name under which Inductor asks for it: a program may have put another table there.
        inductor = importlib.import_module("torch._inductor.compile_fx")
        arguments["decompositions"] = inductor.select_decomp_table()
    # Dynamo's graphs return a tuple, as AOTAutograd demands; one written by hand may return a tensor.
    single = isinstance(gm.graph.output_node().args[0], torch.fx.Node)
    with _settings(plan):
        compiled = aot_autograd(**arguments)(_returning_a_tuple(gm) if single else gm, inputs)
    if plan.checks_ops:
        compiled = _without_torchs_op_checks(compiled)
    return (lambda *args: compiled(*args)[0]) if single else compiled


def run_boxed(graph: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Boxed:
    """A compiler that compiles nothing: the aten graph itself, called with a list that it empties.

    >>> run_boxed(gm, [x])([x])
    (tensor([0., 2.]),)
    """
    from torch.fx.graph import _BoxedCodeGen

    graph.graph.set_codegen(_BoxedCodeGen())
    graph.recompile()
    return boxed(graph.forward)


def boxed(function: Boxed) -> Boxed:
    """Tells AOTAutograd that `function` takes one list: `boxed(lambda args: graph(*args))`."""

    # A bound method takes no attribute, and one function may serve several graphs.
    def run(args: list[Any]) -> Any:
        return function(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _returning_a_tuple(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    graph.output((graph.graph_copy(gm.graph, {}),))
    return torch.fx.GraphModule(gm, graph)


def _without_torchs_op_checks(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """2.11..2.15: `check_custom_op_aliasing` is read at the first call; a release without it checks nothing."""
    config: Any = importlib.import_module("torch._functorch.config")
    if not hasattr(config, "check_custom_op_aliasing"):
        return compiled

    def run(*args: Any) -> Any:
        with config.patch(check_custom_op_aliasing=False):
            return compiled(*args)

    return run


def _partitioner(name: str) -> Callable[..., Any]:
    partitioners = importlib.import_module("functorch.compile")
    if name == "default":
        return partitioners.default_partition
    min_cut = partitioners.min_cut_rematerialization_partition
    return functools.partial(min_cut, compiler="inductor") if name == "inductor" else min_cut


def _settings(plan: AotPlan) -> AbstractContextManager[Any]:
    config: Any = importlib.import_module("torch._functorch.config")
    wanted = {"force_autograd_cache": False}  # what our compilers return cannot be written to that cache
    if plan.inductor_decompositions:
        wanted["unlift_effect_tokens"] = True  # as Inductor has it: its graphs create effect tokens inside
    return config.patch({name: value for name, value in wanted.items() if hasattr(config, name)})


_numbers = itertools.count()


def pre_dispatch_trace(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> torch.fx.GraphModule:
    """The graph as aten calls above autograd, traced on Dynamo's fake values or on fakes of the inputs.

    Traced on the real inputs instead, a graph that changes an input would change it twice.
    """
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.traceback import preserve_node_meta

    placeholders = gm.graph.find_nodes(op="placeholder")
    known = all("example_value" in node.meta for node in placeholders)
    fakes = [node.meta["example_value"] for node in placeholders] if known else inputs

    def interpreted(*args: Any) -> Any:
        return torch.fx.Interpreter(gm).run(*args)

    tracing = "real" if known else "fake"
    with preserve_node_meta():
        return make_fx(interpreted, tracing_mode=tracing, pre_dispatch=True, _allow_non_fake_inputs=True)(
            *fakes
        )


def run_as_subgraph(graph: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Boxed:
    """A compiler for AOTAutograd: the graph itself, which under a `make_fx` trace leaves one call node."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    module = importlib.import_module("torch._higher_order_ops.invoke_subgraph")
    name = f"sleuth_subgraph_{next(_numbers)}"

    def run(args: list[Any]) -> Any:
        operands = tuple(args)
        args.clear()
        if get_proxy_mode() is None:  # nobody traces
            return graph(*operands)
        if hasattr(module, "invoke_subgraph_infer"):
            return module.invoke_subgraph_infer(graph, *operands)
        return module.invoke_subgraph(graph, name, *operands)

    return boxed(run)


def compiling_inside_traces() -> AbstractContextManager[Any] | None:
    """A context in which torch.compile compiles although a trace is running; None where this torch cannot."""
    config: Any = importlib.import_module("torch._dynamo.config")
    if not hasattr(config, "force_compile_during_fx_trace"):
        return None
    return config.patch(force_compile_during_fx_trace=True)


# Views of a result stand between it and the function that made it.
_VIEWS = 16


def compiled_function_of(results: Sequence[torch.Tensor]) -> Any:
    """The function of AOTAutograd's that made one of these; its `compiled_bw` is None until its backward is compiled.

    >>> compiled_function_of([torch.ones(2, requires_grad=True).exp()]) is None
    True
    """
    nodes = [result.grad_fn for result in results]
    for place in range(_VIEWS):
        if place == len(nodes):
            break
        made = getattr(nodes[place], "_forward_cls", None)
        if hasattr(made, "compiled_bw"):
            return made
        nodes += [each for each, _ in getattr(nodes[place], "next_functions", ())]
    return None
