"""What a failure says of itself points at nodes."""

import torch

from torchsleuth.search.minify.case_state import seeds
from torchsleuth.torch_core.graphs.source_line import SourceLine

aten = torch.ops.aten


def graph():
    return torch.fx.symbolic_trace(
        lambda x: aten.relu.default(aten.erf.default(aten.relu.default(aten.sin.default(x)) + 1))
    )


def test_the_target_of_a_lowering_is_named_and_the_users_line_decides_among_several():
    text = 'LoweringException: Oops\n  target: aten.relu.default\nFound from :\n  File "/m/model.py", line 7, in forward'
    lines = {
        "relu_default_1": SourceLine("/m/model.py", 7),
        "relu_default": SourceLine("/m/model.py", 5),
    }
    assert seeds(graph(), text, "Oops", lines) == ["relu_default_1", "relu_default"]


def test_the_node_that_was_being_executed_comes_first():
    text = "While executing %erf_default : [num_users=1]\n  target: aten.relu.default"
    assert seeds(graph(), text, "", {})[0] == "erf_default"


def test_an_operators_name_in_the_message_is_a_hint():
    assert seeds(graph(), "", "'undeclared_erf' was not declared", {}) == ["erf_default"]


def test_nothing_is_blamed_where_nothing_is_said():
    assert seeds(graph(), "Fatal Python error: Segmentation fault", "", {}) == []


def test_a_nested_graph_is_blamed_for_what_it_holds():
    root = torch.nn.Module()
    root.body = graph()
    outer = torch.fx.Graph()
    x, body = outer.placeholder("x"), outer.get_attr("body")
    outer.output((outer.call_function(torch.ops.higher_order.invoke_subgraph, (body, "b", x)),))
    gm = torch.fx.GraphModule(root, outer)
    assert seeds(gm, "  target: aten.erf.default", "", {}) == ["invoke_subgraph"]


def test_the_generated_code_names_the_operator_of_a_kernel_that_did_not_return():
    called = "Current thread 0x1\n  File 'c.py', line 7 in call\nGenerated code:\n    {}\n"
    kernel = called.format("cpp_fused_native_layer_norm_erf_0(buf2, buf4)")
    assert seeds(graph(), kernel, "", {}) == ["erf_default"]
    checked = called.format(
        "# Original ATen: [aten.erf, aten.sin]\n    buf5 = vendor.run(buf4)\n"
        "    assert_size_stride(buf5, (8, 32), (32, 1), 'torch.ops.aten.sin.default')"
    )
    assert seeds(graph(), checked, "", {}) == ["sin_default", "erf_default"]
