"""The printed form: what a person reads, what is carried beside it, and what is refused."""

import operator
import sys
import types

import pytest
import torch
from programs import graphs_of
from same_graph import same_graph
from torch._subclasses import FakeTensorMode

from torchsleuth.script_runtime.reader import read_graph
from torchsleuth.torch_core.graphs.printer import Unprintable, print_graph
from torchsleuth.torch_core.graphs.spelling import _public_names


def module(graph, **attributes):
    root = torch.nn.Module()
    for name, value in attributes.items():
        setattr(root, name, value)
    return torch.fx.GraphModule(root, graph)


def one_call(target, *args, **kwargs):
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    call = graph.call_function(target, (x,))
    graph.output((call,))
    gm = module(graph)
    call = next(node for node in gm.graph.nodes if node.op == "call_function")
    call.args, call.kwargs = (*call.args, *args), kwargs  # without fx's own codegen, which knows fewer values
    return gm


def raw(tensor):
    return tensor.detach().clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8).tolist()


def constant_graph(tensor):
    graph = torch.fx.Graph()
    graph.output((graph.get_attr("held"),))
    return module(graph, held=tensor)


def nested(gm):
    return [part for part in gm.modules() if isinstance(part, torch.fx.GraphModule)]


def restored(gm):
    printed = print_graph(gm)
    return read_graph(
        printed.source, namespace={**printed.references, "constant": printed.constants.__getitem__}
    )


def test_a_graph_reads_like_the_program_it_came_from():
    printed = print_graph(next(graph for graph in graphs_of("net") if graph.level == "dynamo").gm)
    body = printed.source.splitlines()
    assert body[0] == "class Repro(torch.nn.Module):"
    assert body[2] == "        # programs.py:26 in forward: x = torch.relu(self.first(x)) + self.shift"
    assert body[4] == "        relu = torch.relu(linear)  # f32[2, 4]"
    assert "        _enter_autocast = torch.amp._enter_autocast('cpu', torch.bfloat16, True, None)" in body
    assert body[-1] == "        return (float_1,)"
    assert printed.imports == () and printed.custom_ops == () and not printed.constants


def test_symbolic_sizes_are_shown_as_expressions():
    inner = next(graph for graph in graphs_of("sizes") if graph.level == "inference")
    assert "# f32[2*s77, s27]" in print_graph(inner.gm).source


def test_nested_graphs_are_classes_above_their_parent_and_counted():
    captured = next(graph for graph in graphs_of("cond") if graph.level == "inference")
    printed = print_graph(captured.gm)
    assert printed.source.index("class TrueGraph0(") < printed.source.index("class Repro(")
    assert "self.true_graph_0 = TrueGraph0()" in printed.source
    expected = sum(node.op.startswith("call_") for part in nested(captured.gm) for node in part.graph.nodes)
    assert printed.calls == expected > 4
    assert "true_graph_0.sin" in printed.nodes
    assert "higher_order.cond" in printed.ops and "aten.sin.default" in printed.ops


def test_a_region_used_twice_is_printed_once():
    printed = print_graph(next(graph for graph in graphs_of("nested region") if graph.level == "dynamo").gm)
    assert printed.source.count("class ") == 2


def test_custom_operators_are_named_and_torchs_own_are_not():
    inner = next(graph for graph in graphs_of("mutating custom op") if graph.level == "inference")
    assert print_graph(inner.gm).custom_ops == ("sleuthtests::fill_twice",)
    assert print_graph(one_call(torch.ops.prims.convert_element_type.default, torch.int8)).custom_ops == ()


def test_a_users_function_becomes_a_reference():
    def mine(x):
        return x * 3

    printed = print_graph(one_call(mine))
    (name,) = printed.references
    assert printed.references[name] is mine
    assert f"= {name}(x)" in printed.source


def test_names_that_would_hide_something_are_replaced():
    graph = torch.fx.Graph()
    names = ["torch", "operator", "constant", "inf", "math"]
    nodes = [graph.placeholder(name) for name in names]
    total = nodes[0]
    for node in nodes[1:]:
        total = graph.call_function(operator.iadd, (total, node))
    graph.output(total)
    gm = module(graph)
    assert same_graph(gm, restored(gm)) is None
    scope = {}
    exec(print_graph(gm).text, scope)
    assert scope["Repro"]()(1, 2, 3, 4, 5) == 15


def test_attributes_whose_path_is_no_name_are_reached():
    torch.manual_seed(0)
    traced = torch.fx.symbolic_trace(
        torch.nn.Sequential(
            torch.nn.Linear(3, 4),
            torch.nn.Sequential(torch.nn.Conv1d(4, 4, 1, bias=False), torch.nn.BatchNorm1d(4)),
            torch.nn.GELU("tanh"),
        ).eval()
    )
    again = restored(traced)
    assert same_graph(traced, again) is None
    x = torch.randn(4, 3)
    assert torch.equal(again(x), traced(x))
    assert not again.get_submodule("0").training
    assert torch.equal(again.get_submodule("1.0").weight, traced.get_submodule("1.0").weight)


def test_a_tied_weight_stays_tied():
    weight = torch.nn.Parameter(torch.ones(100))
    graph = torch.fx.Graph()
    graph.output((graph.get_attr("a"), graph.get_attr("b")))
    again = restored(module(graph, a=weight, b=weight))
    assert again.a is again.b and isinstance(again.a, torch.nn.Parameter)


def test_one_nested_graph_under_two_names_stays_one():
    inner = torch.fx.Graph()
    inner.output(inner.call_function(torch.sin, (inner.placeholder("a"),)))
    child = module(inner)
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    both = graph.get_attr("left"), graph.get_attr("right")
    graph.output(graph.call_function(torch.ops.higher_order.cond, (True, *both, (x,))))
    gm = module(graph, left=child, right=child)
    again = restored(gm)
    assert same_graph(gm, again) is None
    assert again.left is again.right and isinstance(again.right, torch.fx.GraphModule)


@pytest.mark.parametrize("count, inline", [(64, True), (65, False)])
def test_only_large_constants_are_kept_beside_the_source(count, inline):
    printed = print_graph(constant_graph(torch.arange(count)))
    assert ("constant('Repro.held')" in printed.source) is not inline
    assert list(printed.constants) == ([] if inline else ["Repro.held"])


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([1.5, -0.0, float("nan"), float("-inf"), 1e-45]),
        torch.tensor([-1], dtype=torch.int32).view(torch.float32),  # a NaN with a payload
        torch.tensor([0.1, -0.0], dtype=torch.bfloat16),
        torch.tensor([0.1, 65504.0], dtype=torch.float16),
        torch.tensor([complex(-0.0, float("inf")), 1 + 2j], dtype=torch.complex64),
        torch.tensor([True, False]),
        torch.tensor([2**63 - 1, -(2**63)]),
        torch.tensor([255, 0], dtype=torch.uint8),
        torch.tensor(3.25, dtype=torch.float64),
        torch.tensor([1.0, 448.0]).to(torch.float8_e4m3fn),
        torch.empty(0, 3),
        torch.arange(6.0).view(2, 3).t(),
        torch.ones(1).expand(4),
        torch.ones(1).as_strided((1,), (0,)),
        torch.empty(0).as_strided((2, 0), (0, 5)),
        torch.arange(8)[3:6],
        torch.ones(3, requires_grad=True),
    ],
    ids=str,
)
def test_a_small_constant_comes_back_bit_by_bit(tensor):
    again = restored(constant_graph(tensor)).held
    form = lambda t: (t.dtype, t.shape, t.stride(), t.requires_grad)  # noqa: E731
    assert form(again) == form(tensor)
    assert raw(again) == raw(tensor)


def test_constants_are_read_although_a_fake_mode_is_active():
    gm = constant_graph(torch.tensor([1.0, 2.0]))
    with FakeTensorMode():
        assert "torch.tensor([1.0, 2.0], dtype=torch.float32)" in print_graph(gm).source


@pytest.mark.parametrize(
    "gm, says",
    [
        (one_call(torch.rand_like, generator=torch.Generator()), "torch.Generator"),
        (one_call(torch.add, object()), "builtins.object"),
        (constant_graph(torch.ones(2).to_sparse()), "sparse"),
        (constant_graph(torch.empty(2, device="meta")), "meta"),
    ],
)
def test_what_cannot_be_written_is_refused_with_the_reason(gm, says):
    with pytest.raises(Unprintable, match=says) as refused:
        print_graph(gm)
    assert str(refused.value).endswith(".") and "\n" not in str(refused.value)


def test_a_module_that_is_not_torchs_is_refused():
    class Own(torch.nn.Module):
        def forward(self, x):
            return x

    graph = torch.fx.Graph()
    graph.output(graph.call_module("own", (graph.placeholder("x"),)))
    with pytest.raises(Unprintable, match="Own"):
        print_graph(module(graph, own=Own()))


def long_graph(nodes):
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    for number in range(nodes):
        node = graph.call_function(torch.ops.aten.add.Tensor, (node, 1.5), {"alpha": 2})
        node.meta["stack_trace"] = (
            f'  File "/home/me/model.py", line {number // 5}, in forward\n    x = x + 1\n'
        )
        node.meta["val"] = torch.empty(3, 4, device="meta")
    graph.output((node,))
    return module(graph)


def functions_called(work):
    """How many functions run, in Python and in C, while `work` does: its cost on any machine."""
    count = 0

    def note(_frame, event, _function):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_printing_a_graph_costs_in_proportion_to_its_nodes():
    short, long = long_graph(300), long_graph(3000)
    print_graph(short)  # builds the index of names
    few, many = (functions_called(lambda: print_graph(graph)) for graph in (short, long))
    assert print_graph(long).calls == 3000
    assert many < 12 * few
    assert many < 100 * 3000  # measured: 74 for each node


def test_a_namespace_that_grows_while_it_is_looked_through_does_no_harm(monkeypatch):
    grown = types.ModuleType("grown")

    class Lazy:
        """Fills its module when it is looked at, as torch's own lazy values do."""

        def __call__(self):
            raise NotImplementedError

        @property
        def __class__(self):
            setattr(grown, f"more_{len(vars(grown))}", 1)
            return Lazy

    grown.first, grown.second = Lazy(), Lazy()
    monkeypatch.setitem(sys.modules, "grown", grown)
    monkeypatch.setattr("torchsleuth.torch_core.graphs.spelling.modules_by_preference", lambda: ["grown"])
    assert len(_public_names.__wrapped__(0)) > 0
