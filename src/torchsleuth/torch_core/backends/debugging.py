"""The debugging backends: Dynamo's graph run as it is, on AOTAutograd with eager kernels, and on TorchScript.

What fails under the first is not any compiler's fault; those on AOTAutograd go one step further towards Inductor each.
`sleuth_eager_debug` holds every operator call against its schema: a wrong one is invisible in eager and breaks
compilers, which reorder, drop or share what the schema allows them to. TorchScript picks an operator's overload by
itself, knows no device objects and takes every input for a tensor unless told: so graphs are respelled first. Some fail
on purpose, for testing debuggers, on relu alone or on inputs with a history: a relu is a relu however it is spelled,
and the fault is put into a copy of the captured graph.
"""

from __future__ import annotations

import logging
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchsleuth.torch_core.backends.checked_ops import (
    Steps,
    after_call,
    before_call,
    crossref_compiler,
    place_of,
)
from torchsleuth.torch_core.backends.errors import (
    BadChoice,
    EagerFails,
    Graph,
    Inputs,
    MissingMode,
    NoNestedCompile,
    NonLeafCompileError,
    ReluCompileError,
    ReluRuntimeError,
    Run,
    SchemaMismatch,
    ScriptFails,
    debugging_backend,
)
from torchsleuth.torch_internals import aot_autograd
from torchsleuth.torch_internals.aot_autograd import (
    AotPlan,
    Boxed,
    GraphCompiler,
    boxed,
    pre_dispatch_trace,
    run_as_subgraph,
    run_boxed,
    through_aot,
)
from torchsleuth.torch_internals.configuration import crossref_setting, no_script_autocast
from torchsleuth.torch_internals.hooks import registered_backend
from torchsleuth.torch_internals.modes import watching_ops

_log = logging.getLogger("torchsleuth.backends.pre_dispatch")


@debugging_backend
def sleuth_eager(gm: Graph, inputs: Inputs) -> Run:
    """Dynamo's graph as it is: `torch.compile(f, backend="sleuth_eager")`."""
    return gm.forward


@debugging_backend
def sleuth_eager_noexcept(gm: Graph, inputs: Inputs) -> Run:
    """As `sleuth_eager`; an exception becomes `EagerFails`, which names the line of the generated code."""
    # Asked for now: until then the module has no code, and would be called in a way that hides the line.
    code = gm.code

    def run(*args: Any) -> Any:
        try:
            return gm.forward(*args)  # calling the module itself would lose the traceback
        except Exception as error:
            line = _failing_line(gm, error)
            raise EagerFails(error, code, line, place_of(_node_of(gm, line))) from error

    return run


@debugging_backend
def sleuth_pre_dispatch_eager(gm: Graph, inputs: Inputs) -> Run:
    """Logs the graph as aten calls above autograd (to stderr where logging is not set up), then runs that graph."""
    traced = pre_dispatch_trace(gm, inputs)
    _make_audible()
    _log.info(traced.print_readable(print_output=False))
    return traced.forward


def _failing_line(gm: torch.fx.GraphModule, error: BaseException) -> str:
    """The line of the graph's generated code that the exception passed through."""
    generated = type(gm).forward.__code__.co_filename
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == generated and frame.line:
            return frame.line.split(";  ")[0].strip()  # what follows only frees variables
    return ""


def _node_of(gm: torch.fx.GraphModule, line: str) -> torch.fx.Node | None:
    name = line.partition("=")[0].partition(":")[0].strip()
    return next((node for node in gm.graph.nodes if node.name == name), None)


def _make_audible() -> None:
    """Whoever picks this backend wants to see the graph, also where logging was never set up."""
    if not _log.hasHandlers():
        _log.addHandler(logging.StreamHandler())
    if _log.level == logging.NOTSET:
        _log.setLevel(logging.INFO)


@debugging_backend
def sleuth_eager_debug(gm: Graph, inputs: Inputs) -> Run:
    """Runs the graph eagerly; an undeclared mutation or alias raises `SchemaMismatch`."""

    def run(*args: Any) -> Any:
        steps = Steps(gm)

        def check(op: Any, op_args: tuple[Any, ...], op_kwargs: dict[str, Any], call: Callable) -> Any:
            before = before_call(op, op_args, op_kwargs)
            result = call()
            for difference in after_call(before, result):
                raise SchemaMismatch(str(op), difference, steps.place)
            return result

        with watching_ops(check):
            return steps.run(*args)

    return run


def with_torch_function_modes(
    modes: TorchFunctionMode | Iterable[TorchFunctionMode], inner: str | Callable[..., Any] = "eager"
) -> Callable[..., Run]:
    """A backend that compiles with `inner` and runs the result under `modes`, the first outermost.

    Use: `torch.compile(f, backend=with_torch_function_modes([Counting()], inner="sleuth_aot_eager"))`.
    Options given to torch.compile reach `inner`.
    """
    entered = (modes,) if isinstance(modes, TorchFunctionMode) else tuple(modes)

    def sleuth_torch_function_modes(gm: Graph, example_inputs: Inputs, **given: Any) -> Run:
        compiled = registered_backend(inner)(gm, example_inputs, **given)

        def run(*args: Any) -> Any:
            with ExitStack() as stack:
                for mode in entered:
                    stack.enter_context(mode)
                return compiled(*args)

        return run

    return sleuth_torch_function_modes


@debugging_backend
def sleuth_aot_eager(gm: Graph, inputs: Inputs, *, fw_compiler: Any = None, bw_compiler: Any = None) -> Run:
    """AOTAutograd, then eager kernels: `torch.compile(f, backend="sleuth_aot_eager")`."""
    return through_aot(gm, inputs, AotPlan(fw_compiler or run_boxed, bw_compiler or run_boxed))


@debugging_backend
def sleuth_aot_eager_default_partitioner(gm: Graph, inputs: Inputs) -> Run:
    """As `sleuth_aot_eager`, with the partitioner that saves everything and recomputes nothing."""
    return through_aot(gm, inputs, AotPlan(run_boxed, partition="default"))


@debugging_backend
def sleuth_aot_eager_decomp_partition(gm: Graph, inputs: Inputs) -> Run:
    """AOTAutograd as Inductor asks for it, decompositions and partitioner included, then eager kernels."""
    return through_aot(gm, inputs, _as_inductor(run_boxed))


@debugging_backend
def sleuth_aot_eager_decomp_partition_with_mode(gm: Graph, inputs: Inputs, *, mode: Any = None) -> Run:
    """As `sleuth_aot_eager_decomp_partition`, forward and backward under `options={"mode": ...}`."""
    if not hasattr(mode, "__enter__"):
        raise MissingMode("sleuth_aot_eager_decomp_partition_with_mode", mode)

    def under_mode(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Boxed:
        eager = run_boxed(graph, inputs)

        def run(args: list[Any]) -> Any:
            with mode:
                return eager(args)

        return boxed(run)

    return through_aot(gm, inputs, _as_inductor(under_mode))


@debugging_backend
def sleuth_aot_eager_decomp_partition_crossref(gm: Graph, inputs: Inputs, *, ops: Any = None) -> Run:
    """As `sleuth_aot_eager_decomp_partition`, each custom operator's fake side held against the real call.

    Every operator with `options={"ops": "all"}`, or with torch's own setting `fake_tensor_crossref = "all"`.
    """
    if ops is None:
        ops = "all" if crossref_setting() == "all" else "custom"
    if ops not in ("custom", "all"):
        raise BadChoice("sleuth_aot_eager_decomp_partition_crossref", "ops", ops, ("custom", "all"))
    plan = replace(_as_inductor(crossref_compiler(every_op=ops == "all")), checks_ops=True)
    return through_aot(gm, inputs, plan)


def _as_inductor(compiler: GraphCompiler) -> AotPlan:
    return AotPlan(compiler, partition="inductor", inductor_decompositions=True)


@debugging_backend
def sleuth_invoke_subgraph(gm: Graph, inputs: Inputs) -> Run:
    """AOTAutograd with eager kernels; trace it inside `compiling_inside_traces()` to see the subgraphs."""
    return through_aot(gm, inputs, AotPlan(run_as_subgraph))


def compiling_inside_traces() -> AbstractContextManager[Any]:
    """Lets torch.compile compile while an outer trace runs, which it otherwise refuses or inlines.

    Inside, `make_fx(torch.compile(f, backend="sleuth_invoke_subgraph"))(x)` is a graph with one call of a subgraph.
    """
    context = aot_autograd.compiling_inside_traces()
    if context is None:
        raise NoNestedCompile(torch.__version__)
    return context


@debugging_backend
def sleuth_ts(gm: Graph, inputs: Inputs) -> Run:
    """Dynamo's graph under `torch.jit.script`."""
    return _scripted(gm)


@debugging_backend
def sleuth_aot_ts(gm: Graph, inputs: Inputs) -> Run:
    """AOTAutograd's forward and backward, each under `torch.jit.script`."""
    plan = AotPlan(_script_aten_graph, partition="default", keep_input_mutations=False)
    return through_aot(gm, inputs, plan)


def _script_aten_graph(graph: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Boxed:
    with no_script_autocast():
        scripted = _scripted(graph)

    def run(args: list[Any]) -> Any:
        operands = tuple(args)
        args.clear()
        with no_script_autocast():
            return scripted(*operands)

    return boxed(run)


def _scripted(gm: torch.fx.GraphModule) -> Callable[..., Any]:
    try:
        with warnings.catch_warnings():
            # That TorchScript is old and what it thinks of fx's classes does not help whoever asks for it by name.
            warnings.simplefilter("ignore")
            return torch.jit.script(_respelled(gm))
    except Exception as error:
        raise ScriptFails(error) from error


def _respelled(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A copy in TorchScript's words; a new module, as those of Dynamo hold lazy code that it would compile too."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    for node in graph.nodes:
        if node.op == "placeholder" and isinstance(node.meta.get("val"), torch.SymInt):
            node.type = int
        elif node.op == "call_function":
            node.target = getattr(node.target, "overloadpacket", node.target)
            plain = {k: str(v) if isinstance(v, torch.device) else v for k, v in node.kwargs.items()}
            node.kwargs = plain
    return torch.fx.GraphModule(gm, graph)


_RELUS = (
    torch.relu,
    torch.relu_,
    torch.nn.functional.relu,
    torch.nn.functional.relu_,
    torch.Tensor.relu,
    torch.Tensor.relu_,
    torch.ops.aten.relu.default,
    torch.ops.aten.relu_.default,
)


@debugging_backend
def sleuth_relu_compile_error(gm: Graph, inputs: Inputs) -> Run:
    """Raises `ReluCompileError` while it compiles a graph with a relu; runs any other eagerly."""
    for module in gm.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            if _is_relu(module, node):
                raise ReluCompileError(f"no relu here: {node.format_node()}")
    return gm.forward


@debugging_backend
def sleuth_relu_runtime_error(gm: Graph, inputs: Inputs) -> Run:
    """Compiles; each relu raises `ReluRuntimeError` when it runs."""
    return _with_relu(gm, _failing_relu).forward


@debugging_backend
def sleuth_relu_accuracy_error(gm: Graph, inputs: Inputs) -> Run:
    """Compiles and runs; each relu(x) gives x + 1."""
    return _with_relu(gm, _wrong_relu).forward


@debugging_backend
def sleuth_non_leaf_compile_error(gm: Graph, inputs: Inputs) -> Run:
    """Raises `NonLeafCompileError` for a graph that calls something and has an input with a gradient history."""
    calls = any(node.op.startswith("call_") for node in gm.graph.nodes)
    for number, value in enumerate(inputs):
        if calls and isinstance(value, torch.Tensor) and not value.is_leaf:
            raise NonLeafCompileError(f"input {number} is not a leaf")
    return gm.forward


def _failing_relu(x: torch.Tensor) -> torch.Tensor:
    raise ReluRuntimeError(f"no relu here: its input has shape {list(x.shape)}")


def _wrong_relu(x: torch.Tensor) -> torch.Tensor:
    return torch.add(x, 1)


def _with_relu(gm: torch.fx.GraphModule, relu: Callable[..., Any]) -> torch.fx.GraphModule:
    """A graph like `gm`, nested ones included, that calls `relu` for each relu; parameters are shared, not copied."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    copied = torch.fx.GraphModule(gm, graph)
    for node in graph.nodes:
        if _is_relu(gm, node):
            node.op, node.target, node.args, node.kwargs = (
                "call_function",
                relu,
                (node.all_input_nodes[0],),
                {},
            )
        elif node.op == "get_attr":
            nested = getattr(gm, node.target, None)
            if isinstance(nested, torch.fx.GraphModule):
                setattr(copied, node.target, _with_relu(nested, relu))
    copied.recompile()
    return copied


def _is_relu(module: torch.nn.Module, node: torch.fx.Node) -> bool:
    if node.op == "call_module":
        return isinstance(module.get_submodule(str(node.target)), torch.nn.ReLU)
    if node.op == "call_method":
        return node.target in ("relu", "relu_")
    return node.op == "call_function" and node.target in _RELUS
