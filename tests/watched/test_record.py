"""The record of one graph: what a script needs is in it, what cannot be written is said."""

import importlib
import json

import pytest
import torch
import torch.fx

from torchsleuth.core.cases.record import CompileSettings
from torchsleuth.script_runtime.inputs import load_inputs
from torchsleuth.watched.graph_record import GraphOrigin, keep_inputs, keep_values, record_graph, state_now


def origin(**more):
    return GraphOrigin(CompileSettings("aot", state=state_now()), **more)


def graph_of(*calls):
    graph = torch.fx.Graph()
    value = graph.placeholder("x")
    for target, *args in calls:
        value = graph.call_function(target, (value, *args))
    graph.output((value,))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def test_a_graph_that_communicates_is_refused_with_a_plain_sentence(tmp_path):
    if not torch.distributed.is_available():
        pytest.skip("this torch was built without torch.distributed")
    importlib.import_module("torch.distributed._functional_collectives")

    graph = graph_of((torch.ops._c10d_functional.all_reduce.default, "sum", "0"))
    record = record_graph(tmp_path, 1, graph, [torch.ones(2)], origin())
    assert "communicates between processes" in record.facts.no_repro


def test_a_graph_with_a_user_object_that_cannot_be_embedded_says_which(tmp_path):
    graph = graph_of((torch.ops.aten.sin.default,))

    class Backend:
        def __init__(self):
            self.log = open(tmp_path / "log.txt", "w")  # noqa: SIM115 - as a backend holds it

        def __call__(self, gm, inputs):
            return gm

    record = record_graph(tmp_path, 1, graph, [torch.ones(2)], origin(custom_backend=Backend()))
    assert "backend" in record.facts.no_repro


def test_a_record_is_json_and_keeps_the_sizes_of_the_call_it_describes(tmp_path):
    graph = graph_of((torch.ops.aten.sin.default,))
    value = torch.arange(6.0).view(2, 3).t()
    record = record_graph(tmp_path, 1, graph, [value], origin())
    written = json.loads((tmp_path / "record.json").read_text())
    assert written["calls"] == 1 and written["placeholders"] == ["x"] and written["no_repro"] is None
    kept = keep_values(record.inputs, [value], [value], tmp_path / "inputs").inputs[0]
    assert (kept.shape, kept.stride) == ((3, 2), (1, 3)) and kept.storage is not None
    assert list((tmp_path / "inputs" / "storages").glob("*.safetensors"))


def test_a_call_with_inputs_that_overlap_is_kept_with_what_the_graph_was_compiled_for(tmp_path):
    graph = torch.fx.symbolic_trace(lambda x, y: (torch.ops.aten.add.Tensor(x, y),))
    record = record_graph(tmp_path, 1, graph, [torch.ones(4), torch.ones(4)], origin())
    line = torch.arange(6.0)
    keep_inputs(record, [line[:4], line[2:]])
    assert record.facts.settings.parted
    x, y = load_inputs(record.facts.inputs, str(tmp_path / "inputs"))
    x[2] = 9
    assert y.tolist() == [9, 3, 4, 5]
    keep_inputs(record, [torch.ones(4), torch.ones(4)])
    assert not record.facts.settings.parted
