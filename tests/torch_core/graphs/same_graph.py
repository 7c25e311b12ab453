"""When two graphs are the same graph. Nodes are compared by position, so names and metadata play no part."""

import math
from collections.abc import Mapping

import torch

from torchsleuth.torch_core.graphs.attributes import held_value
from torchsleuth.torch_core.graphs.printer import in_order
from torchsleuth.torch_internals.operators import numpy_wrapper


def same_graph(a: torch.fx.GraphModule, b: torch.fx.GraphModule) -> str | None:
    """None where the graphs are equal, else one sentence about the first difference."""
    return _difference(a, b, "")


def _difference(a: torch.fx.GraphModule, b: torch.fx.GraphModule, where: str) -> str | None:
    ours, theirs = in_order(a), in_order(b)
    position = {node: number for nodes in (ours, theirs) for number, node in enumerate(nodes)}
    for left, right in zip(ours, theirs):
        at = f"{where}{left.name}"
        if left.op != right.op:
            return f"Node {at} is a {left.op} in one graph and a {right.op} in the other."
        if left.op in ("get_attr", "call_module"):
            found = _attribute_difference(
                held_value(a, str(left.target)), held_value(b, str(right.target)), at
            )
            if found is not None:
                return found
        elif left.op in ("call_function", "call_method") and not _same_target(left.target, right.target):
            return f"Node {at} calls {left.target} in one graph and {right.target} in the other."
        if not _equal((left.args, dict(left.kwargs)), (right.args, dict(right.kwargs)), position):
            return (
                f"Node {at} has other arguments: {left.args} {left.kwargs} and {right.args} {right.kwargs}."
            )
    if len(ours) != len(theirs):
        return f"The graphs{' at ' + where if where else ''} have {len(ours)} and {len(theirs)} nodes."
    return None


def _same_target(left: object, right: object) -> bool:
    wrapped = numpy_wrapper(left)
    return left == right if wrapped is None else wrapped == numpy_wrapper(right)


def _attribute_difference(left: object, right: object, at: str) -> str | None:
    if isinstance(left, torch.fx.GraphModule) and isinstance(right, torch.fx.GraphModule):
        return _difference(left, right, f"{at}.")
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        same = _tensor_form(left) == _tensor_form(right)
    elif isinstance(left, torch.nn.Module) and isinstance(right, torch.nn.Module):
        tensors = [
            {k: _tensor_form(t) for k, t in m.state_dict(keep_vars=True).items()} for m in (left, right)
        ]
        same = type(left) is type(right) and repr(left) == repr(right) and tensors[0] == tensors[1]
    else:
        same = _equal(left, right, {})
    return None if same else f"The attribute at node {at} differs: {left!r:.200} and {right!r:.200}."


def _tensor_form(tensor: torch.Tensor) -> tuple:
    parameter = isinstance(tensor, torch.nn.Parameter)
    return (tensor.dtype, tensor.shape, tensor.stride(), tensor.device, tensor.requires_grad, parameter)


def _equal(left: object, right: object, position: Mapping[torch.fx.Node, int]) -> bool:
    if isinstance(left, torch.fx.Node) or isinstance(right, torch.fx.Node):
        both = isinstance(left, torch.fx.Node) and isinstance(right, torch.fx.Node)
        return both and position[left] == position[right]
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(_equal(left[key], right[key], position) for key in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        alike = isinstance(left, list) == isinstance(right, list) and len(left) == len(right)
        alike = alike and hasattr(left, "_fields") == hasattr(right, "_fields")
        return alike and all(_equal(ours, theirs, position) for ours, theirs in zip(left, right))
    if type(left) is not type(right):
        return False
    if isinstance(left, slice):
        parts = ("start", "stop", "step")
        return all(_equal(getattr(left, part), getattr(right, part), position) for part in parts)
    if isinstance(left, float):
        return _same_float(left, right)
    if isinstance(left, complex):
        return _same_float(left.real, right.real) and _same_float(left.imag, right.imag)
    if isinstance(left, torch.finfo | torch.iinfo):
        return left.dtype == right.dtype
    return left is right or bool(left == right)


def _same_float(left: float, right: float) -> bool:
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) and math.isnan(right)
    return left == right and math.copysign(1.0, left) == math.copysign(1.0, right)
