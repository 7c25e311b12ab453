"""Which arguments a call may write to: what its schema or its name says, in doubt all."""

import operator

import pytest
import torch
import torch.nn.functional as F

from torchsleuth.torch_internals.schemas import may_write, operator_schemas, written_arguments

aten = torch.ops.aten


def made(target, *args, **kwargs):
    """A node that calls `target` on placeholders, named where the arguments hold a letter."""
    graph = torch.fx.Graph()
    names = [each for each in (*args, *kwargs.values()) if isinstance(each, str) and len(each) == 1]
    known = {name: graph.placeholder(name) for name in dict.fromkeys(names)}
    given = [known.get(each, each) if isinstance(each, str) else each for each in args]
    named = {key: known.get(each, each) if isinstance(each, str) else each for key, each in kwargs.items()}
    if isinstance(target, str):
        return graph.call_method(target, tuple(given), named)
    return graph.call_function(target, tuple(given), named)


CALLS = {
    "an operator": (made(aten.add.Tensor, "x", "y"), []),
    "an operator in place": (made(aten.add_.Tensor, "x", "y"), ["x"]),
    "an operator with memory for its result": (made(aten.add.out, "x", "y", out="z"), ["z"]),
    "a packet": (made(aten.add, "x", "y"), []),
    "a packet with memory for its result": (made(aten.add, "x", "y", out="z"), ["z"]),
    "a packet in place": (made(aten.add_, "x", "y"), ["x"]),
    "a batch norm in training": (made(aten.native_batch_norm.default, "x", "w", "b", "m", "v", True, 0.1, 1e-5), ["m", "v"]),
    "a batch norm in evaluation": (made(aten.native_batch_norm.default, "x", "w", "b", "m", "v", False, 0.1, 1e-5), []),
    "a function": (made(torch.relu, "x"), []),
    "a function in place": (made(torch.relu_, "x"), ["x"]),
    "a function of several arguments with out": (made(torch.add, "x", "y", out="z"), ["z"]),
    "a functional": (made(F.relu, "x"), []),
    "a functional in place, by position": (made(F.relu, "x", True), ["x"]),
    "a functional in place, by name": (made(F.relu, "x", inplace=True), ["x"]),
    "a functional batch norm in training": (made(F.batch_norm, "x", "m", "v", training=True), ["m", "v"]),
    "a functional batch norm in evaluation": (made(F.batch_norm, "x", "m", "v"), []),
    "an embedding that renormalises": (made(F.embedding, "i", "w", max_norm=1.0), ["w"]),
    "an embedding": (made(F.embedding, "i", "w"), []),
    "a method": (made("sin", "x"), []),
    "a method in place": (made("sin_", "x"), ["x"]),
    "a method of two underscores": (made("__and__", "x", "y"), []),
    "a sum of Python": (made(operator.add, "x", "y"), []),
    "a sum of Python in place": (made(operator.iadd, "x", "y"), ["x"]),
    "an assignment": (made(operator.setitem, "x", 0, "y"), ["x"]),
    "a part": (made(operator.getitem, "x", 0), []),
    "a function of the user's": (made(lambda x, y: x, "x", "y"), ["x", "y"]),
}  # fmt: skip


@pytest.mark.parametrize("case", CALLS)
def test_the_arguments_that_a_call_may_write_to(case):
    node, written = CALLS[case]
    assert [each.name for each in written_arguments(node)] == written
    assert may_write(node) == bool(written)


@pytest.mark.parametrize("branch, written", [(lambda x: x.sin(), False), (lambda x: x.add_(1), True)])
def test_a_higher_order_operator_writes_what_the_graphs_it_is_given_write(branch, written):
    inner = torch.fx.symbolic_trace(branch)
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    body = graph.get_attr("body")
    graph.output(graph.call_function(torch.ops.higher_order.invoke_subgraph, (body, "name", x)))
    gm = torch.fx.GraphModule({"body": inner}, graph)
    (call,) = gm.graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph)
    assert may_write(call) == written


def test_an_operator_inside_a_higher_order_one_is_among_the_schemas():
    graph = torch.fx.Graph()
    held = graph.call_function(
        torch.ops.higher_order.auto_functionalized_v2, (aten.relu.default,), {"x": graph.placeholder("x")}
    )
    graph.output(held)
    assert operator_schemas(torch.fx.GraphModule({}, graph)) == ["aten::relu(Tensor self) -> Tensor"]
