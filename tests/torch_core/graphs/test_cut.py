"""Any set of nodes, cut out with recorded values, computes what those nodes computed in the whole graph."""

import copy
import json
import operator
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import PROGRAMS, graphs_of
from same_graph import same_graph

from torchsleuth.script_runtime.reader import read_graph
from torchsleuth.torch_core.graphs.cut import calls_of, cut, units
from torchsleuth.torch_core.graphs.printer import print_graph
from torchsleuth.torch_core.graphs.recording import (
    RecordedTensor,
    record_values,
    recording_from_json,
    recording_to_json,
)
from torchsleuth.torch_core.tensors import ContentStoreWriter, ScalarSpec
from torchsleuth.torch_internals.decompositions import fake_results

# What changes from run to run, and what needs a context that one recorded call does not hold.
UNSTEADY = {"random", "net", "net dynamic", "mutating custom op"}
# Their results inside vmap and grad cannot be copied for the comparison.
NESTING = {"vmap", "grad", "flex attention"}


def fresh(values):
    return copy.deepcopy(list(values))


def yielded(gm, inputs):
    """What each node yields at the moment it does so; a later write does not change it."""
    seen = {}

    class Steps(torch.fx.Interpreter):
        def run_node(self, n):
            seen[n.name] = result = super().run_node(n)
            if n.op.startswith("call"):
                seen[n.name] = copy.deepcopy(result)
            return result

    Steps(gm).run(*fresh(inputs))
    return seen


def loaded(recording, value):
    """A recorded value as an input of a cut."""
    if isinstance(value, ScalarSpec):
        return value.value
    return recording.load(value) if isinstance(value, RecordedTensor) else value


def inputs_of(recording, piece):
    return [loaded(recording, value) for value in piece.values]


def check(recording, keep, whole):
    piece = cut(recording, keep)
    for name, value in yielded(piece.graph, inputs_of(recording, piece)).items():
        if name in keep and isinstance(value, torch.Tensor):
            torch.testing.assert_close(value, whole[name], equal_nan=True)
    return piece


@pytest.mark.parametrize("name", sorted(set(PROGRAMS) - UNSTEADY))
def test_every_single_unit_of_a_real_graph_runs_alone(name):
    for captured in graphs_of(name):
        if not captured.calls or any(isinstance(v, torch.SymInt) for v in captured.calls[0]):
            continue
        with torch.no_grad():
            recording = record_values(captured.gm, fresh(captured.calls[0]))
            assert recording.stopped is None
            whole = yielded(captured.gm, captured.calls[0]) if name not in NESTING else {}
            for unit in units(recording):
                piece = check(recording, unit, whole) if whole else cut(recording, unit)
                assert calls_of(piece.graph) >= len(unit)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_subset_of_real_graphs_computes_the_recorded_values(data):
    name = data.draw(st.sampled_from(["cond", "batch norm", "custom op", "literals", "large constants"]))
    captured = data.draw(st.sampled_from([g for g in graphs_of(name) if g.calls]))
    with torch.no_grad():
        recording = record_values(captured.gm, fresh(captured.calls[0]))
        chosen = [u for u in units(recording) if data.draw(st.booleans())]
        whole = yielded(captured.gm, captured.calls[0])
        piece = check(recording, {name for unit in chosen for name in unit}, whole)
        printed = print_graph(piece.graph)
        again = read_graph(
            printed.source, namespace={**printed.references, "constant": printed.constants.get}
        )
        values = inputs_of(recording, piece)
        for ours, theirs in zip(piece.graph(*fresh(values)), again(*fresh(values))):
            torch.testing.assert_close(ours, theirs, equal_nan=True)


@st.composite
def dags(draw):
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(f"x{i}") for i in range(draw(st.integers(1, 3)))]
    for _ in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(["add", "mul_", "split", "sin", "view", "cat", "size", "shape", "item"]))
        pick = lambda: draw(st.sampled_from(nodes))  # noqa: E731
        if kind == "add":
            nodes.append(graph.call_function(torch.add, (pick(), pick())))
        elif kind == "mul_":
            nodes.append(graph.call_method("mul_", (pick(), 1.5)))
        elif kind == "split":
            parts = graph.call_function(torch.split, (pick(), 2))
            left = graph.call_function(operator.getitem, (parts, 0))
            right = graph.call_function(operator.getitem, (parts, 1))
            nodes.append(graph.call_function(torch.cat, ([left, right],)))
        elif kind == "sin":
            nodes.append(graph.call_function(torch.sin, (pick(),)))
        elif kind == "view":
            flat = graph.call_method("view", (pick(), 2, 2))
            nodes.append(graph.call_method("reshape", (flat, 4)))
        elif kind == "cat":
            both = graph.call_function(torch.cat, ([pick(), pick()],))
            nodes.append(graph.call_method("narrow", (both, 0, 1, 4)))
        elif kind == "shape":
            shape = graph.call_method("size", (pick(),))
            nodes.append(graph.call_method("expand", (pick(), shape)))
        elif kind == "item":
            number = graph.call_method("item", (graph.call_method("sum", (pick(),)),))
            nodes.append(graph.call_function(torch.div, (pick(), number)))
        else:
            size = graph.call_method("size", (pick(), 0))
            nodes.append(graph.call_function(torch.mul, (pick(), size)))
    graph.output((nodes[-1],))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


@settings(max_examples=150, deadline=None)
@given(dags(), st.data())
def test_a_cut_through_writes_and_views_sees_each_value_as_its_reader_did(gm, data):
    inputs = [torch.arange(4.0) / 3 + i for i in range(len(gm.graph.find_nodes(op="placeholder")))]
    recording = record_values(gm, fresh(inputs))
    whole = yielded(gm, inputs)
    check(recording, data.draw(st.sampled_from(units(recording))), whole)
    check(recording, {name for unit in units(recording) for name in unit}, whole)


def test_a_value_that_is_written_to_later_is_recorded_as_it_was_before():
    def program(x):
        y = x + 1
        z = y * 2
        y.mul_(10)
        return z, y + 0

    recording = record_values(torch.fx.symbolic_trace(program), [torch.ones(2)])
    assert loaded(recording, recording.value("add")).tolist() == [2, 2]
    assert loaded(recording, recording.value("add", recording.steps["add_1"])).tolist() == [20, 20]
    assert inputs_of(recording, cut(recording, {"add_1"}))[0].tolist() == [20, 20]
    assert inputs_of(recording, cut(recording, {"mul"}))[0].tolist() == [2, 2]


def test_a_severed_cut_connects_nothing_but_tuples_with_their_parts():
    gm = torch.fx.symbolic_trace(lambda x: torch.relu(torch.var_mean(x.sin(), 0)[1] + 1))
    recording = record_values(gm, [torch.ones(3)])
    assert units(recording) == [("sin",), ("var_mean", "getitem"), ("add",), ("relu",)]
    piece = cut(recording, {n for u in units(recording) for n in u}, severed=True)
    assert piece.names == ("x", "sin", "getitem", "add")
    assert len(piece.graph.graph.output_node().args[0]) == 4
    assert [n.name for n in piece.graph.graph.output_node().all_input_nodes] == [
        "sin",
        "getitem",
        "add",
        "relu",
    ]


def test_a_getitem_goes_without_its_producer_and_a_producer_brings_one():
    gm = torch.fx.symbolic_trace(lambda x: torch.var_mean(x, 0)[1] + 1)
    recording = record_values(gm, [torch.ones(3)])
    assert calls_of(cut(recording, {"getitem", "add"}).graph) == 1
    assert calls_of(cut(recording, {"var_mean"}).graph) == 2


def test_values_beyond_the_limit_move_to_files_and_stay_the_same():
    gm = torch.fx.symbolic_trace(lambda x: torch.ops.aten.sin.default(torch.ops.aten.cos.default(x)))
    free = record_values(gm, [torch.arange(6.0)])
    tight = record_values(gm, [torch.arange(6.0)], most_bytes=0)
    for name in free.steps:
        if name != "output":
            torch.testing.assert_close(loaded(free, free.value(name)), loaded(tight, tight.value(name)))


def test_an_eager_failure_leaves_the_values_up_to_it():
    gm = torch.fx.symbolic_trace(lambda x: (x + 1).view(7))
    recording = record_values(gm, [torch.ones(3)])
    assert "view" in str(recording.stopped) or "shape" in str(recording.stopped)
    assert cut(recording, {"add"}).graph(torch.ones(3))[0].tolist() == [2, 2, 2]


def test_an_exposed_cut_returns_every_value_and_computes_the_same():
    gm = torch.fx.symbolic_trace(lambda x: torch.relu(torch.cos(torch.sin(x))))
    x = torch.randn(3)
    recording = record_values(gm, [x])
    plain, exposed = (cut(recording, {"sin", "cos", "relu"}, exposed=e) for e in (False, True))
    assert [n.name for n in exposed.graph.graph.output_node().args[0]] == ["sin", "cos", "relu"]
    wanted = (x.sin(), x.sin().cos(), x.sin().cos().relu())
    assert all(torch.equal(*pair) for pair in zip(exposed.graph(x), wanted))
    assert torch.equal(plain.graph(x)[0], wanted[-1])


def check_that_another_process_cuts_alike(recording, data):
    """Cuts the recording, and the same as it comes out of a message and a store of tensors, at the same places."""
    with tempfile.TemporaryDirectory() as folder:
        message = json.dumps(recording_to_json(recording, ContentStoreWriter(folder)))
        again = recording_from_json(json.loads(message), recording.graph, Path(folder))
        assert (again.symbols, again.stopped) == (recording.symbols, recording.stopped)
        assert units(again) == units(recording)
        everything = units(recording)
        chosen = [everything, *([unit] for unit in everything)]
        chosen.append([unit for unit in everything if data.draw(st.booleans())])
        for some in chosen:
            keep = {name for unit in some for name in unit}
            for how in ({}, {"severed": True}, {"exposed": True}):
                check_same(recording, cut(recording, keep, **how), again, cut(again, keep, **how))


def check_same(recording, ours, again, theirs):
    assert same_graph(ours.graph, theirs.graph) is None
    assert ours.names == theirs.names
    for mine, other in zip(ours.values, theirs.values, strict=True):
        if not isinstance(mine, RecordedTensor):
            assert mine == other
            continue
        assert replace(other, spec=replace(other.spec, storage=None)) == mine
        torch.testing.assert_close(again.load(other), recording.load(mine), rtol=0, atol=0, equal_nan=True)
        assert again.load(other).stride() == recording.load(mine).stride()


@settings(max_examples=60, deadline=None)
@given(dags(), st.data())
def test_a_recording_of_another_process_cuts_through_writes_and_views_as_the_run_itself_does(gm, data):
    inputs = [torch.arange(4.0) / 3 + i for i in range(len(gm.graph.find_nodes(op="placeholder")))]
    check_that_another_process_cuts_alike(record_values(gm, inputs), data)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_recording_of_another_process_cuts_real_graphs_as_the_run_itself_does(data):
    name = data.draw(st.sampled_from(["cond", "batch norm", "custom op", "literals", "large constants"]))
    captured = data.draw(st.sampled_from([g for g in graphs_of(name) if g.calls]))
    with torch.no_grad():
        recording = record_values(captured.gm, fresh(captured.calls[0]))
        check_that_another_process_cuts_alike(recording, data)


@st.composite
def dynamic_dags(draw):
    """A graph of one vector of a size that is not fixed, which is an input as well."""
    graph = torch.fx.Graph()
    size, last = graph.placeholder("size"), graph.placeholder("x")
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(["sin", "mul_", "cat", "size", "flat", "tuple", "new"]))
        if kind == "sin":
            last = graph.call_function(torch.sin, (last,))
        elif kind == "mul_":
            last = graph.call_method("mul_", (last, 1.5))
        elif kind == "cat":
            last = graph.call_function(torch.cat, ([last, last],))
        elif kind == "size":
            length = graph.call_method("size", (last, 0))
            last = graph.call_function(torch.mul, (last, length))
        elif kind == "flat":
            last = graph.call_method("flatten", (graph.call_method("unsqueeze", (last, 1)),))
        elif kind == "tuple":
            both_ends = graph.call_function(torch.aminmax, (last,), {"dim": 0, "keepdim": True})
            low = graph.call_function(operator.getitem, (both_ends, 0))
            last = graph.call_function(torch.sub, (last, low))
        else:
            made = graph.call_function(torch.zeros, (graph.call_function(operator.mul, (size, 2)),))
            last = graph.call_function(torch.cat, ([last, made],))
    graph.output((last,))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


SYMBOLIC = {
    "schema": 1,
    "inputs": [
        {"kind": "symint", "value": 5, "expr": "s0"},
        {
            "kind": "tensor",
            "dtype": "float32",
            "shape": [5],
            "stride": [1],
            "storage_offset": 0,
            "device": "cpu",
            "requires_grad": False,
            "is_parameter": False,
            "shape_expr": ["s0"],
            "stride_expr": ["1"],
            "offset_expr": None,
        },
    ],
    "symbols": {"s0": {"hint": 5, "lower": 2, "upper": None}},
}


@settings(max_examples=20, deadline=None)
@given(dynamic_dags(), st.data())
def test_a_recording_of_another_process_keeps_sizes_symbolic(gm, data):
    symbolic, error = fake_results(gm, SYMBOLIC, [5, None])
    assert error is None
    recording = record_values(gm, [5, torch.arange(5.0)], symbolic=symbolic)
    assert recording.stopped is None
    assert isinstance(recording.value("size"), ScalarSpec) and recording.symbols
    check_that_another_process_cuts_alike(recording, data)


def test_a_graph_with_a_transform_of_torch_func_is_recorded_to_its_end():
    captured = []

    def backend(graph, inputs):
        captured.append((graph, list(inputs)))
        return graph

    weight = torch.ones(3, requires_grad=True)

    def gradient(x, w):
        return torch.func.grad(lambda t: ((w * 2).detach() * t.sin() * w).sum())(x)

    torch.compile(gradient, backend=backend)(torch.ones(3), weight)
    graph, inputs = captured[0]
    assert record_values(graph, inputs).stopped is None


def test_what_is_taken_along_for_a_value_that_nothing_carries_has_its_own_inputs():
    """Of a graph that stops in eager nothing is known from there on: no such value may stand for an input."""

    def stops(x):
        raise RuntimeError("no device")

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    first, second = (graph.call_function(stops, (x,), name=name) for name in ("first", "second"))
    both = graph.call_function(operator.add, (first, second), name="both")
    graph.output((graph.call_function(torch.neg, (both,), name="last"),))
    recording = record_values(torch.fx.GraphModule(torch.nn.Module(), graph), [torch.ones(2)])
    assert recording.stopped == "no device"
    assert {"first", "second", "both"} <= {n.name for n in cut(recording, {"first"}).graph.graph.nodes}
