"""A case from which no search can start says why in one sentence."""

from dataclasses import replace

import pytest
import torch

from torchsleuth.cases.record import CompileSettings, GraphRecord
from torchsleuth.minify.case_state import CannotMinify, state_of_record
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.tensors.specs import describe_inputs
from torchsleuth.tensors.store import ContentStoreWriter

GRAPH = "class Repro(torch.nn.Module):\n    def forward(self, a):\n        b = torch.relu(a)\n        return (b,)\n"
RECORD = GraphRecord(CompileSettings(), placeholders=("a",))
IN_THE_RUN = Signature("runtime_error", "run", ("ValueError",), "it failed")
IN_THE_COMPILE = Signature("compile_error", "compile", ("ValueError",), "it failed")


def described(device="cpu", store=None):
    doc = describe_inputs([torch.arange(4.0)], store=store).to_json()
    doc["inputs"][0]["device"] = device
    return doc


@pytest.mark.parametrize("expected", [IN_THE_RUN, IN_THE_COMPILE])
def test_a_device_that_is_not_here_is_named(tmp_path, expected):
    device = "xpu:0" if torch.cuda.is_available() else "cuda:0"
    with pytest.raises(CannotMinify, match=rf"{device}.*not here"):
        state_of_record(RECORD, GRAPH, described(device), tmp_path, expected)


def test_tensors_that_are_lost_are_told(tmp_path):
    inputs = described(store=ContentStoreWriter(str(tmp_path)))
    assert state_of_record(RECORD, GRAPH, inputs, tmp_path, IN_THE_RUN).inputs[0].value is not None
    for file in (tmp_path / "storages").iterdir():
        file.unlink()
    with pytest.raises(CannotMinify):
        state_of_record(RECORD, GRAPH, inputs, tmp_path, IN_THE_RUN)


def test_a_graph_that_needs_what_is_not_installed_says_so(tmp_path):
    record = replace(RECORD, imports=("import no_such_package",))
    with pytest.raises(CannotMinify, match="no_such_package"):
        state_of_record(record, GRAPH, described(), tmp_path, IN_THE_COMPILE)
