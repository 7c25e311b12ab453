"""Graphs with views relaxed to reshapes."""

import torch

from torchsleuth.script_runtime.compiling import with_reshapes


def test_a_packed_weight_is_shared_and_other_tensors_are_copied():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    dense = graph.call_method("to_dense", (graph.get_attr("packed"),))
    plain = graph.call_function(torch.add, (x, graph.get_attr("plain")))
    added = graph.call_function(torch.add, (plain, dense))
    graph.output(graph.call_function(torch.ops.aten.view.default, (added, [4])))
    root = torch.nn.Module()
    root.packed = torch.ones(2, 2).to_mkldnn()
    root.plain = torch.ones(2)
    module = torch.fx.GraphModule(root, graph)
    relaxed = with_reshapes(module)
    assert relaxed(torch.ones(2, 2).t()).tolist() == [3.0] * 4
    assert relaxed.packed is module.packed and relaxed.plain is not module.plain
