"""Runs the operations of a lowered graph that Inductor does not write itself: library kernels, fallbacks, scalars.

One idea: each such operation is one line in generated code, a call of a named function on buffers, so the same
function is called here on the same values. What it raises goes on unchanged: that is evidence.
Differs between torch versions: a subclass with its own way into generated code is refused, not guessed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchsleuth.torch_internals.inductor_ir.arithmetic import NotInterpretable, number, value_of

# Its classes are library calls like any other; their own code generation only includes a header first.
_ONLY_ADDS_HEADERS = "torch._inductor.mkldnn_ir"


def run_kernel(run: Any, operation: Any) -> None:
    """Calls what the operation names and keeps its result under the operation's name.

    Use: `run_kernel(run, graph.operations[0])`.
    """
    for kind in type(operation).__mro__:
        known = _KERNELS.get(kind.__name__)
        if known is None:
            continue
        own_way = getattr(type(operation), "codegen", None) is not getattr(kind, "codegen", None)
        if own_way and not type(operation).__module__.endswith(_ONLY_ADDS_HEADERS):
            break
        known(run, operation)
        return
    raise NotInterpretable(f"the graph holds a {type(operation).__name__}, which only generated code can run")


def _keep(run: Any, operation: Any, result: Any) -> None:
    """The result under the operation's name, and the sizes that are known only by it, such as the count of nonzero
    elements: its own layout may be in these."""
    run.values[operation.get_name()] = result
    bindings = getattr(operation, "unbacked_bindings", None)
    if not bindings:
        return
    from torch.fx.experimental.symbolic_shapes import resolve_unbacked_bindings

    resolved = resolve_unbacked_bindings(run.graph.sizevars.shape_env, bindings)
    for symbol, path in (resolved or {}).items():
        run.symbols[symbol] = _along(path, result)


def _along(path: Sequence[Any], value: Any) -> Any:
    for key in path:
        value = int(value) if type(key).__name__ == "ConvertIntKey" else key.get(value)
    return value


def require_layout(run: Any, tensor: Any, size: Sequence[Any], stride: Sequence[Any], *by: str) -> None:
    """Generated code stops where a tensor is not laid out as the lowering was told; so does this, in its words."""
    sizes, strides = run.numbers(size), run.numbers(stride)
    if 0 not in sizes:
        torch._C._dynamo.guards.assert_size_stride(tensor, sizes, strides, *by)


def _require_own_layout(run: Any, operation: Any) -> None:
    layout = operation.get_output_spec()
    if run.asserts and any(each.__name__ == "Layout" for each in type(layout).__mro__):
        value = run.values[operation.get_name()]
        require_layout(run, value, layout.size, layout.stride, operation.get_op_name())


def _function(operation: Any) -> Callable[..., Any]:
    """The function that the generated line would name."""
    name = operation.python_kernel_name
    if not name:
        raise NotInterpretable(f"a {type(operation).__name__} does not name the function it calls")
    first, *rest = name.split(".")
    roots: dict[str, Any] = {
        "torch": torch,
        "aten": torch.ops.aten,
        "inductor_ops": torch.ops.inductor,
        "_quantized": torch.ops._quantized,
    }
    found = roots.get(first)
    if first == "extern_kernels":
        found = importlib.import_module("torch._inductor.select_algorithm").extern_kernels
    for part in rest:
        found = getattr(found, part, None)
    if not callable(found):
        raise NotInterpretable(f"the function {name} is not known here")
    return found


def _arguments(run: Any, operation: Any) -> tuple[list[Any], dict[str, Any]]:
    args = [*run.value(list(operation.inputs)), *run.value(list(operation.constant_args))]
    return args, run.value(dict(operation.kwargs))


def _into_memory(run: Any, operation: Any) -> None:
    args, kwargs = _arguments(run, operation)
    view = getattr(operation, "output_view", None)
    out = run.value(view) if view is not None else run.tensor(operation.get_name())
    _function(operation)(*args, **kwargs, out=out)


def _copied_to_device(run: Any, operation: Any) -> None:
    (source, non_blocking), _ = _arguments(run, operation)
    run.tensor(operation.get_name()).copy_(source, bool(non_blocking))


def _with_new_memory(run: Any, operation: Any) -> None:
    args, kwargs = _arguments(run, operation)
    _keep(run, operation, _function(operation)(*args, **kwargs))
    _require_own_layout(run, operation)


def _fallback_arguments(run: Any, operation: Any) -> tuple[list[Any], dict[str, Any]]:
    args, kwargs = operation.unflatten_args(operation.inputs, operation.constant_args)
    return run.value(list(args)), {**run.value(dict(operation.kwargs)), **run.value(dict(kwargs))}


def _fallback(run: Any, operation: Any) -> None:
    args, kwargs = _fallback_arguments(run, operation)
    _keep(run, operation, operation.op_overload(*args, **kwargs))
    _require_own_layout(run, operation)


def _fallback_into_memory(run: Any, operation: Any) -> None:
    args, kwargs = _fallback_arguments(run, operation)
    outs = [run.tensor(node.get_name()) for node in operation.out_variant_output_nodes]
    operation.op_overload(*args, **kwargs, **dict(zip(operation.out_arg_names, outs)))


def _picked_output(run: Any, operation: Any) -> None:
    value = run.values.get(operation.inputs[0].get_name())
    for container, place in operation.indices:
        if not issubclass(container, (list, tuple, dict)):
            raise NotInterpretable(f"an output is picked from a {container.__name__}")
        value = value[place]
    _keep(run, operation, value)
    if not getattr(operation, "skip_size_stride_alignment_checks", False):
        _require_own_layout(run, operation)


def _in_place(run: Any, operation: Any) -> None:
    args, _ = _arguments(run, operation)
    _function(operation)(*args)


def _scatter(run: Any, operation: Any) -> None:
    if operation.src_is_tensor:
        target, index, source = run.value(list(operation.inputs))
        (dim,) = operation.constant_args
    else:
        target, index = run.value(list(operation.inputs))
        dim, source = run.value(list(operation.constant_args))
    kwargs = dict(operation.kwargs)
    if not str(operation.python_kernel_name).startswith("aten.scatter_reduce"):
        kwargs = {"reduce": kwargs["reduce"]} if kwargs.get("reduce") else {}
    _function(operation)(target, dim, index, source, **kwargs)


def _index_put(run: Any, operation: Any) -> None:
    target, values, *given = run.value(list(operation.inputs))
    places = iter(given)
    indices = [None if each is None else next(places) for each in operation.indices]
    _function(operation)(target, indices, values, *run.value(list(operation.constant_args)))


def _scalar(run: Any, operation: Any) -> None:
    (data,) = run.value(list(operation.inputs))
    run.symbols[operation.sym] = _along(operation.keypath, data.item())


def _assertion(run: Any, operation: Any) -> None:
    if run.asserts and not value_of(operation.scalar, run.symbols):
        raise RuntimeError(operation.msg)


def _selected_offset(run: Any, operation: Any) -> None:
    fields = (operation.index, operation.size, operation.base_offset, operation.base_dim_stride)
    index, size, offset, stride = (number(each, run.symbols) for each in fields)
    place = index + size if index < 0 else index
    if operation.clamp:
        place = max(0, min(size, place))
    run.symbols[operation.unbacked_offset_symbol] = offset + stride * place


def _sliced_size(run: Any, operation: Any) -> None:
    fields = (operation.start, operation.end, operation.step, operation.size)
    start, end, step, size = (number(each, run.symbols) for each in fields)
    run.symbols[operation.unbacked_size_symbol] = len(range(*slice(start, end, step).indices(size)))


def _branch(run: Any, operation: Any) -> None:
    holds = bool(run.value(operation.predicate))
    chosen = operation.true_subgraph if holds else operation.false_subgraph
    inputs = run.value(list(operation.operands))
    _keep(run, operation, run.nested(chosen, inputs))


def _switch(run: Any, operation: Any) -> None:
    """A branch as 2.15 has it: the number picks one, true is 1, and what no branch has is the last one's."""
    if any(not hasattr(operation, name) for name in ("selector", "branches", "operands")):
        raise NotInterpretable("the graph holds a Switch of another form than that of torch 2.15")
    place, last = int(run.value(operation.selector)), len(operation.branches) - 1
    chosen = operation.branches[place if 0 <= place <= last else last]
    _keep(run, operation, run.nested(chosen, run.value(list(operation.operands))))


def _loop(run: Any, operation: Any) -> None:
    if getattr(operation, "stack_output", False):
        raise NotInterpretable("the graph holds a while loop that keeps every step")
    carried = run.value(list(operation.carried_inputs))
    further = run.value(list(operation.additional_inputs))
    while bool(run.nested(operation.cond_subgraph, [*carried, *further])[0]):
        carried = run.nested(operation.body_subgraph, [*carried, *further])
    _keep(run, operation, carried)


_KERNELS: dict[str, Callable[[Any, Any], None]] = {
    "ExternKernelOut": _into_memory,
    "DeviceCopy": _copied_to_device,
    "ExternKernelAlloc": _with_new_memory,
    "FallbackKernel": _fallback,
    "ExternKernelMultiOut": _fallback_into_memory,
    "AllocatingMultiOutput": lambda run, operation: None,  # its memory was written by the kernel before it
    "MultiOutput": _picked_output,
    "InplaceBernoulliFallback": _in_place,
    "InplaceCopyFallback": _in_place,
    "MutatingFirstArgExternKernel": _in_place,
    "ScatterFallback": _scatter,
    "IndexPutFallback": _index_put,
    "DynamicScalar": _scalar,
    "AssertScalar": _assertion,
    "DynamicSelectStorageOffset": _selected_offset,
    "DynamicSliceSize": _sliced_size,
    "InvokeSubgraph": lambda run, call: _keep(
        run, call, run.nested(call.subgraph, run.value(list(call.inputs)))
    ),
    "Conditional": _branch,
    "Switch": _switch,
    "WhileLoop": _loop,
}
