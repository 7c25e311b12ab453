"""A record of a graph comes back from JSON as it was, from whichever version wrote it."""

from __future__ import annotations

import json

import pytest

from torchsleuth.core.cases.record import AmbientState, CompileSettings, Embedded, GraphRecord, read_record
from torchsleuth.torch_core.graphs.source_line import SourceLine

FULL = GraphRecord(
    CompileSettings(
        "aot",
        "mine",
        "backward",
        {"max_autotune": "True"},
        {"is_backward": True, "static_input_idxs": [0]},
        {"torch._inductor.config": {"freezing": "True"}},
        AmbientState(grad=False, autocast={"cpu": "torch.bfloat16"}),
        (0, 2),
    ),
    3,
    "0/1",
    "forward",
    2,
    {"torch": "2.11"},
    "abc",
    ("model.py:8",),
    ("x", "y"),
    "it communicates",
    {"command": ["python"], "cwd": "/"},
    2,
    ("aten.relu.default",),
    ("import os",),
    {"names": ["c"], "description": {}},
    {"relu": SourceLine("/m/model.py", 8, "forward", "relu(x)", "fc", "relu", True)},
    SourceLine("/m/train.py", 1),
    {"relu": {"module": "fc", "call": "nn.ReLU", "gradient": False}},
    Embedded("def backend(graph, inputs): ...", ("import math",), ("from train.py",)),
    {"inputs": []},
)


@pytest.mark.parametrize("record", [FULL, GraphRecord(CompileSettings())])
def test_a_record_comes_back_from_json_as_it_was(record):
    assert GraphRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_record_json_has_the_keys_that_other_tools_read():
    always = {
        *("number", "level", "backend", "direction", "compile_id", "function", "outer", "options"),
        *("compile_kwargs", "state", "versions", "hash", "source_lines", "output_meta", "placeholders"),
        *("no_repro", "program", "config", "calls", "ops", "imports", "nodes", "constants", "parted"),
        "forward_only",
    }
    assert set(GraphRecord(CompileSettings()).to_json()) == always
    assert set(FULL.to_json()) == always | {"called_from", "modules", "embedded", "inputs"}
    assert FULL.to_json()["output_meta"] == {"user_visible_output_idxs": [0, 2]}


def test_what_another_version_left_out_or_added_is_no_hindrance(tmp_path):
    (tmp_path / "record.json").write_text('{"level": "aot", "nodes": null, "of_the_future": 1}')
    record = read_record(tmp_path / "record.json")
    assert record.settings == CompileSettings("aot") and record.nodes == {} and record.no_repro is None


def test_of_a_model_of_library_modules_each_node_has_the_line_that_calls_it():
    called = SourceLine("/m/train.py", 5, "main", "model(x)")
    record = GraphRecord(
        CompileSettings(), called_from=called, modules={"relu": {"module": "fc", "call": "nn.ReLU"}}
    )
    line = record.lines["relu"]
    assert (line.place, line.module, line.call) == ("train.py:5", "fc", "nn.ReLU")


@pytest.mark.parametrize(
    ("embedded", "own"),
    [
        (Embedded("def backend(graph, inputs):\n    return graph\n"), True),
        (Embedded("x = 1\nbackend = make(x)\n"), True),
        (Embedded(imports=("from package import compiler as backend",)), True),
        (Embedded("def other():\n    backend = 1\n"), False),
        (Embedded("backend_name = 1\n"), False),
        (Embedded(), False),
    ],
)
def test_a_backend_of_the_users_own_is_told_by_its_name(embedded, own):
    assert embedded.defines_backend is own
