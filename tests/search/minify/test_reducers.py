"""Each reducer by itself, with a fake oracle, to its exact minimum."""

import operator

import pytest
import torch

from made_graphs import Oracle, aten, holds, node, shapes, traced
from torchsleuth.script_runtime.symbolic_inputs import symbolic_inputs
from torchsleuth.search.minify.contract import Input, _value_rank
from torchsleuth.search.minify.engine import Engine
from torchsleuth.search.minify.reducers.calls import (
    bypass,
    drop_outputs,
    inline_nested,
    merge_inputs,
    plainer_arguments,
)
from torchsleuth.search.minify.reducers.nodes import reduce_nodes
from torchsleuth.search.minify.reducers.plainer import (
    compile_the_whole_way,
    contiguous,
    default_settings,
    for_inference,
    on_the_cpu,
    plain_dtypes,
    plainer_values,
    without_gradients,
)
from torchsleuth.search.minify.reducers.sizes import fewer_dimensions, smaller_sizes, static_sizes
from torchsleuth.search.minify.states import checked, real_inputs, state_of
from torchsleuth.torch_core.graphs.cut import calls_of
from torchsleuth.torch_core.tensors import ScalarSpec, describe_tensor
from torchsleuth.torch_internals.decompositions import fake_results


def settled(reducer, state, fails):
    oracle = Oracle(fails)
    found = Engine(oracle, state).settle("test", reducer)
    assert fails(found)
    assert checked(found) is found
    return found


def fake_values(state):
    """What each node yields to the compiler, and what stopped it there."""
    numbers = [i.spec.value if isinstance(i.spec, ScalarSpec) else None for i in state.inputs]
    return fake_results(state.graph, state.description.to_json(), numbers)


def test_nodes_keep_the_culprit_and_of_a_tuple_the_part_that_matters():
    state = traced(
        lambda x: aten.relu.default(aten.var_mean.correction(x.sin(), [0])[1]).cos() + 1, torch.ones(3, 4)
    )
    oracle = Oracle(lambda s: holds(s, aten.var_mean.correction))
    found = reduce_nodes(Engine(oracle, state), state)
    assert [n.target for n in found.graph.graph.nodes if n.op == "call_function"] == [
        aten.var_mean.correction,
        operator.getitem,
    ]
    assert found.inputs[0].name == "sin_given"


def test_nodes_that_only_fail_together_stay_connected():
    state = traced(lambda x: (((x.sin() + 1).cos() * 2).exp() - 3).relu(), torch.ones(3))

    def fails(s):
        if not holds(s, "cos", "exp"):
            return False
        source = node(s, "exp").args[0]
        return (
            source.target is operator.mul
            and source.args[0].target == "cos"
            and source.args[0].op == "call_method"
        )

    found = reduce_nodes(Engine(Oracle(fails), state), state)
    assert [n.name for n in found.graph.graph.nodes if n.op.startswith("call")] == ["cos", "mul", "exp"]


def test_outputs_that_do_not_matter_are_not_returned():
    def program(x):
        a = x.sin()
        b = a.cos()
        return a, b, a + b

    found = settled(drop_outputs, traced(program, torch.ones(2)), lambda s: holds(s, "cos"))
    assert len(found.graph.graph.output_node().args[0]) == 1


def test_inputs_of_one_form_become_one():
    state = traced(lambda x, y, z: aten.cat.default([x, y, z]), torch.ones(2), torch.zeros(2), torch.ones(3))
    found = settled(merge_inputs, state, lambda s: holds(s, aten.cat.default))
    assert shapes(found) == [(2,), (3,)]


def test_arguments_go_to_their_defaults_and_literals_to_plain_ones():
    state = traced(
        lambda x: aten.max_pool2d_with_indices.default(x, [2, 2], [2, 2], [1, 1], [1, 1], True)[0],
        torch.ones(1, 1, 8, 8),
    )
    found = settled(plainer_arguments, state, lambda s: holds(s, aten.max_pool2d_with_indices.default))
    assert list(node(found, aten.max_pool2d_with_indices.default).args[1:]) == [[1, 1]]


def test_a_keyword_that_matters_stays():
    state = traced(lambda x: aten.var.correction(x, [0], correction=2, keepdim=True), torch.ones(3, 4))

    def fails(s):
        return node(s, aten.var.correction).kwargs.get("correction") == 2

    assert dict(node(settled(plainer_arguments, state, fails), aten.var.correction).kwargs) == {
        "correction": 2
    }


def test_views_clones_and_steps_in_between_are_bypassed():
    state = traced(lambda x: x.sin().clone().view(2, 2).t().contiguous().cos(), torch.ones(4))
    found = settled(bypass, state, lambda s: holds(s, "sin", "cos"))
    assert [n.target for n in found.graph.graph.nodes if n.op == "call_method"] == ["sin", "cos"]


def test_several_results_of_one_operator_become_one_read_several_times():
    state = traced(
        lambda x, y: aten.add.Tensor(aten.mul.Tensor(x, y), aten.mul.Tensor(y, 2)),
        torch.ones(4),
        torch.ones(4),
    )

    def fails(s):
        return all(i.target is aten.mul.Tensor for i in node(s, aten.add.Tensor).all_input_nodes)

    found = settled(bypass, state, fails)
    assert [n.target for n in found.graph.graph.nodes if n.op == "call_function"] == [
        aten.mul.Tensor,
        aten.add.Tensor,
    ]


def test_a_call_with_several_results_does_not_give_way_to_an_input_in_a_graph_of_operators():
    state = traced(lambda x: aten.sort.default(aten.sin.default(x))[0], torch.ones(4)).setting(level="aot")
    found = settled(bypass, state, lambda s: node(s, operator.getitem) is not None)
    assert holds(found, aten.sort.default) and not holds(found, aten.sin.default)


def test_a_branch_takes_the_place_of_its_cond():
    class Branch(torch.nn.Module):
        def forward(self, a):
            return (a.sin() * 2,)

    class Other(torch.nn.Module):
        def forward(self, a):
            return (a.cos(),)

    root = torch.nn.Module()
    root.yes, root.no = torch.fx.symbolic_trace(Branch()), torch.fx.symbolic_trace(Other())
    graph = torch.fx.Graph()
    flag, x = graph.placeholder("flag"), graph.placeholder("x")
    yes, no = graph.get_attr("yes"), graph.get_attr("no")
    call = graph.call_function(torch.ops.higher_order.cond, (flag, yes, no, (x,)))
    graph.output((graph.call_function(operator.getitem, (call, 0)),))
    state = state_of(torch.fx.GraphModule(root, graph), [torch.tensor(False), torch.ones(2)])
    assert calls_of(state.graph) == 5
    found = settled(inline_nested, state, lambda s: holds(s, "sin"))
    assert [n.target for n in found.graph.graph.nodes if n.op.startswith("call")] == ["sin", operator.mul]
    assert [i.name for i in found.inputs] == ["x"]
    engine = Engine(Oracle(lambda s: holds(s, "sin")), found)
    assert calls_of(reduce_nodes(engine, found).graph) == 1


@pytest.mark.parametrize("least", [1, 2, 7, 65, 100])
def test_sizes_shrink_to_the_least_that_fails(least):
    state = traced(
        lambda x, y: aten.cat.default([x, y], 1), torch.ones(1, 192, 4, 4), torch.ones(1, 192, 4, 4)
    )
    oracle = Oracle(lambda s: shapes(s)[0][1] >= least)
    found = Engine(oracle, state).settle("shapes", smaller_sizes)
    assert shapes(found) == [(1, least, 1, 1), (1, 1, 1, 1)]
    assert len(oracle.asked) <= 60


def test_literals_follow_the_size_they_repeat():
    state = traced(lambda x: aten.view.default(x, [5, 3]), torch.ones(3, 5))
    found = settled(smaller_sizes, state, lambda s: holds(s, aten.view.default))
    assert shapes(found) == [(1, 1)]
    assert list(node(found, aten.view.default).args[1]) == [1, 1]


def test_dimensions_of_one_element_go():
    state = traced(lambda x: x.relu(), torch.ones(1, 3, 1))
    found = settled(fewer_dimensions, state, lambda s: holds(s, "relu"))
    assert shapes(found) == [(3,)]


def test_a_crop_keeps_the_largest_element():
    value = torch.zeros(40, 30)
    value[17, 23] = 99.0
    state = traced(lambda x: x.relu(), value)
    found = settled(smaller_sizes, state, lambda s: float(real_inputs(s)[0].max()) > 50)
    assert shapes(found) == [(1, 1)]
    assert real_inputs(found)[0].tolist() == [[99.0]]


def test_strides_become_dense_where_they_do_not_matter():
    state = traced(lambda x: x.relu(), torch.ones(4, 3).t())
    assert settled(contiguous, state, lambda s: True).inputs[0].spec.stride == (4, 1)
    kept = settled(contiguous, state, lambda s: s.inputs[0].spec.stride == (1, 3))
    assert kept.inputs[0].spec.stride == (1, 3)


def test_dtypes_become_the_usual_ones_in_inputs_and_literals():
    state = traced(lambda x: x.relu().to(torch.float16), torch.ones(3, dtype=torch.float16))
    found = settled(plain_dtypes, state, lambda s: holds(s, "relu"))
    assert found.inputs[0].spec.dtype == "float32"
    assert node(found, "to").args[1] is torch.float32


def test_gradients_go_where_they_do_not_matter():
    state = traced(lambda x, y: x * y, torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True))
    found = settled(without_gradients, state, lambda s: s.inputs[0].spec.requires_grad)
    assert [i.spec.requires_grad for i in found.inputs] == [True, False]


def test_values_become_the_plainest_that_fail():
    state = traced(lambda x, y: x * y, torch.tensor([0.3, -7.25]), torch.tensor([2.5, 1.5]))
    found = settled(
        plainer_values, state, lambda s: s.inputs[1].value is not None and bool((s.inputs[1].value > 0).all())
    )
    assert found.inputs[0].value.tolist() == [1.0, 1.0]
    assert found.inputs[1].value.tolist() == [1.0, 1.0]


def test_settings_go_back_to_their_defaults_one_by_one():
    world = {
        "grad": True,
        "inference_mode": False,
        "deterministic": True,
        "autocast": {},
        "matmul_precision": "high",
    }
    state = traced(
        lambda x: x.relu(),
        torch.ones(2),
        config={"torch._inductor.config": {"a": "1", "b": "2"}},
        options={"c": "3"},
        state=world,
    )
    found = settled(
        default_settings,
        state,
        lambda s: s.settings.config["torch._inductor.config"].get("b") == "2" if s.settings.config else False,
    )
    assert found.settings.config == {"torch._inductor.config": {"b": "2"}}
    assert found.settings.options == {}
    assert not found.settings.state.grad
    assert not found.settings.state.deterministic


def test_training_becomes_inference_where_it_does_not_matter():
    state = traced(
        lambda x: x.relu(), torch.ones(2), compile_kwargs={"is_backward": True, "cudagraphs": False}
    )
    assert settled(for_inference, state, lambda s: True).settings.compile_kwargs == {"is_inference": True}
    stays = settled(for_inference, state, lambda s: s.settings.compile_kwargs.get("is_backward"))
    assert stays.settings.compile_kwargs["is_backward"]


def dynamic_state():
    """x of [s, 3] goes through a view that needs s; the size is an input, as it is after Dynamo."""
    graph = torch.fx.Graph()
    size, x = graph.placeholder("size"), graph.placeholder("x")
    total = graph.call_function(operator.mul, (size, 3))
    flat = graph.call_function(aten.view.default, (x, [total]))
    sine = graph.call_function(aten.sin.default, (flat,))
    graph.output((graph.call_function(aten.cos.default, (sine,)),))
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    description = {
        "inputs": [
            {"kind": "symint", "value": 5, "expr": "s0"},
            {
                "kind": "tensor",
                "dtype": "float32",
                "shape": [5, 3],
                "stride": [3, 1],
                "storage_offset": 0,
                "device": "cpu",
                "requires_grad": False,
                "is_parameter": False,
                "shape_expr": ["s0", "3"],
                "stride_expr": ["3", "1"],
                "offset_expr": None,
            },
        ],
        "symbols": {"s0": {"hint": 5, "lower": 2, "upper": None}},
    }
    fakes, _ = symbolic_inputs(description, [5, torch.ones(5, 3)])
    return state_of(gm, [5, torch.ones(5, 3)], fakes=fakes)


def test_a_cut_of_a_dynamic_graph_stays_dynamic_and_binds_its_symbols():
    state = dynamic_state()

    def fails(s):
        results, error = fake_values(s)
        return (
            error is None
            and holds(s, aten.sin.default)
            and isinstance(results[node(s, aten.sin.default).name].shape[0], torch.SymInt)
        )

    found = reduce_nodes(Engine(Oracle(fails), state), state)
    assert calls_of(found.graph) == 1
    assert len(found.symbols) == 1
    assert isinstance(found.inputs[0].spec, ScalarSpec)
    assert found.inputs[1].spec.shape_expr[0].startswith("3*")


def test_symbolic_sizes_become_fixed_where_they_do_not_matter():
    found = settled(static_sizes, dynamic_state(), lambda s: holds(s, aten.sin.default))
    assert found.symbols == {}
    assert [i.name for i in found.inputs] == ["x"]


def two_symbols():
    """x of [s0, s1, 64], seen as [2, 13, 64], in a layout of its own, and sin of it."""
    gm = torch.fx.symbolic_trace(lambda x: (aten.sin.default(x),))
    spec = {
        "kind": "tensor",
        "dtype": "float32",
        "shape": [2, 13, 64],
        "stride": [2496, 192, 1],
        "storage_offset": 0,
        "device": "cpu",
        "requires_grad": False,
        "is_parameter": False,
        "shape_expr": ["s0", "s1", "64"],
        "stride_expr": ["192*s1", "192", "1"],
        "offset_expr": None,
    }
    symbols = {"s0": {"hint": 2, "lower": 2, "upper": None}, "s1": {"hint": 13, "lower": 2, "upper": None}}
    value = torch.empty_strided((2, 13, 64), (2496, 192, 1))
    fakes, _ = symbolic_inputs({"inputs": [spec], "symbols": symbols}, [value])
    return state_of(gm, [value], fakes=fakes)


def test_a_tensor_on_memory_of_its_own_is_not_said_to_begin_in_the_middle_of_it():
    gm = torch.fx.symbolic_trace(lambda x: (aten.cos.default(aten.sin.default(x)),))
    spec = {
        "kind": "tensor",
        "dtype": "float32",
        "shape": [5],
        "stride": [1],
        "storage_offset": 5,
        "device": "cpu",
        "requires_grad": False,
        "is_parameter": False,
        "shape_expr": ["s0"],
        "stride_expr": ["1"],
        "offset_expr": "s0",
    }
    value = torch.arange(10.0)[5:]
    symbols = {"s0": {"hint": 5, "lower": 2, "upper": None}}
    fakes, _ = symbolic_inputs({"inputs": [spec], "symbols": symbols}, [value])
    state = state_of(gm, [value], fakes=fakes)
    assert state.inputs[0].spec.offset_expr in state.symbols
    found = reduce_nodes(Engine(Oracle(lambda s: holds(s, aten.sin.default)), state), state)
    assert calls_of(found.graph) == 1
    assert (found.inputs[0].spec.storage_offset, found.inputs[0].spec.offset_expr) == (0, None)


def sizes_seen(state):
    """The sizes of the first input as the compiler sees them, symbols as None, and as the run sees them."""
    results, error = fake_values(state)
    assert error is None
    seen = next(iter(results.values())).shape
    return [None if isinstance(n, torch.SymInt) else int(n) for n in seen], list(real_inputs(state)[0].shape)


def test_a_symbolic_shape_gets_smaller_in_what_the_compiler_and_the_run_see_alike():
    def fails(state):
        seen, real = sizes_seen(state)
        assert all(a is None or a == b for a, b in zip(seen, real))
        return None in seen and any(n is not None and n > 40 for n in seen)

    state = two_symbols()
    found = settled(smaller_sizes, state, fails)
    assert sizes_seen(found) == ([None, None, 41], [2, 2, 41])
    _, middle, _ = found.inputs[0].spec.shape_expr
    assert found.inputs[0].spec.stride_expr == (f"41*({middle})", "41", "1")
    assert [about.hint for about in found.symbols.values()] == [2, 2]


def test_one_of_two_symbols_is_fixed_where_the_other_is_needed():
    found = settled(static_sizes, two_symbols(), lambda s: sizes_seen(s)[0][1] is None)
    (left,) = found.symbols
    assert found.inputs[0].spec.shape_expr == ("2", left, "64")
    assert sizes_seen(found) == ([2, None, 64], [2, 13, 64])


def test_everything_moves_to_the_cpu_where_the_device_does_not_matter():
    state = traced(
        lambda x: aten._to_copy.default(x, device=torch.device("meta")) + x,
        torch.ones(2, device="meta"),
        any_values=True,
    )
    found = settled(on_the_cpu, state, lambda s: True)
    assert found.inputs[0].spec.device == "cpu"
    assert node(found, aten._to_copy.default).kwargs["device"] == torch.device("cpu")


def test_a_graph_is_lifted_to_the_whole_compiler_where_it_fails_there_too():
    state = traced(
        lambda x: (aten.relu.default(x),),
        torch.ones(2),
        level="aot",
        compile_kwargs={"is_backward": True},
    ).having(static_names=("x",))
    found = settled(compile_the_whole_way, state, lambda s: True)
    assert found.settings.level == "dynamo"
    assert found.settings.compile_kwargs == {}
    assert found.static_names is None
    assert settled(compile_the_whole_way, state, lambda s: s.settings.level == "aot").settings.level == "aot"


def test_values_are_recorded_under_the_autocast_the_graph_ran_under():
    world = {"autocast": {"cpu": "torch.bfloat16"}, "grad": False}
    state = traced(lambda x: (x @ x).relu(), torch.ones(2, 2), level="dynamo", state=world)
    found = reduce_nodes(Engine(Oracle(lambda s: holds(s, "relu")), state), state)
    assert found.inputs[0].spec.dtype == "bfloat16"


def test_a_state_that_does_not_fit_is_refused_without_a_word(capfd):
    state = traced(lambda a, b: (aten.cat.default([a, b], 1),), torch.ones(2), torch.ones(2))
    assert checked(state) is None
    assert capfd.readouterr() == ("", "")


def test_numbers_that_are_drawn_stay_so_many_that_two_draws_differ():
    def sizes(function):
        state = traced(function, torch.ones(16, 8))
        return sorted(shapes(settled(smaller_sizes, state, lambda s: calls_of(s.graph) == 1))[0])

    assert sizes(lambda x: aten.sin.default(x)) == [1, 1]
    rows, columns = sizes(lambda x: aten.bernoulli.p(x, 0.5))
    assert 32 <= rows * columns < 128


@pytest.mark.parametrize(
    ("values", "rank"), [([1.0, 1.0], 1), ([0.0, 0.0], 2), ([1.0, 2.0], 4), ([0.5, 2.0], 6)]
)
def test_numbers_of_eight_bits_are_as_plain_as_any(values, rank):
    """They know no arithmetic: a graph with such inputs could not be made small at all."""
    value = torch.tensor(values).to(torch.float8_e4m3fn)
    assert _value_rank(Input("x", describe_tensor(value), value), False) == rank
