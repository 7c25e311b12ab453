"""A case from which no search can start says why in one sentence."""

import json
from dataclasses import replace

import pytest
import torch

from made import make
from torchsleuth.core.cases.folder import write_case
from torchsleuth.core.cases.record import AmbientState, CompileSettings, Embedded, GraphRecord
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.search.minify.case_state import CannotMinify, SearchStart, search_start, state_of_record
from torchsleuth.search.minify.contract import Listener
from torchsleuth.search.minify.minify_case import minify_case
from torchsleuth.search.minify.states import Questions, trial_of
from torchsleuth.torch_core.tensors import ContentStoreWriter, describe_inputs
from trials_here import TrialsHere

GRAPH = "class Repro(torch.nn.Module):\n    def forward(self, a):\n        b = torch.relu(a)\n        return (b,)\n"
RECORD = GraphRecord(CompileSettings(), placeholders=("a",))
IN_THE_RUN = Signature("runtime_error", "run", ("ValueError",), "it failed")
IN_THE_COMPILE = Signature("compile_error", "compile", ("ValueError",), "it failed")


def described(device="cpu", store=None):
    doc = describe_inputs([torch.arange(4.0)], store=store).to_json()
    doc["inputs"][0]["device"] = device
    return doc


@pytest.fixture
def questions(tmp_path):
    return Questions(TrialsHere(), tmp_path / "values")


def minified(tmp_path, questions, record, inputs, expected, device="cpu"):
    case = make(device=device, kind=expected.kind, phase=expected.phase, signature=expected, triage=None)
    folder = write_case(tmp_path / "cases", case, {})
    state = state_of_record(record, GRAPH, inputs, tmp_path, expected, questions)
    return minify_case(folder, SearchStart(state, expected, record, ""), questions, Listener())


@pytest.mark.parametrize("expected", [IN_THE_RUN, IN_THE_COMPILE])
def test_a_device_that_is_not_here_is_named(tmp_path, questions, expected):
    device = "xpu:0" if torch.cuda.is_available() else "cuda:0"
    with pytest.raises(CannotMinify, match=rf"{device}.*not here"):
        minified(tmp_path, questions, RECORD, described(device), expected, device)


def test_tensors_that_are_lost_are_told(tmp_path, questions):
    inputs = described(store=ContentStoreWriter(str(tmp_path)))
    assert state_of_record(RECORD, GRAPH, inputs, tmp_path, IN_THE_RUN, questions).inputs[0].value is not None
    for file in (tmp_path / "storages").iterdir():
        file.unlink()
    with pytest.raises(CannotMinify):
        state_of_record(RECORD, GRAPH, inputs, tmp_path, IN_THE_RUN, questions)


def test_a_state_that_is_freed_of_a_value_is_tried_without_it(tmp_path, questions):
    inputs = described(store=ContentStoreWriter(str(tmp_path)))
    state = state_of_record(RECORD, GRAPH, inputs, tmp_path, IN_THE_RUN, questions)
    freed = state.having(inputs=(replace(state.inputs[0], value=None),))
    kept, lost = (trial_of(each, IN_THE_RUN, tmp_path).inputs["inputs"][0] for each in (state, freed))
    assert kept["storage"] is not None and lost["storage"] is None


def test_a_graph_that_needs_what_is_not_installed_says_so(tmp_path, questions):
    record = replace(RECORD, imports=("import no_such_package",))
    graph = GRAPH.replace("torch.relu", "torch.ops.unheard_of.relu.default")
    with pytest.raises(CannotMinify, match="no_such_package"):
        state_of_record(record, graph, described(), tmp_path, IN_THE_COMPILE, questions)


@pytest.mark.parametrize("expected", [IN_THE_RUN, IN_THE_COMPILE])
def test_definitions_that_need_what_is_not_installed_say_so_and_nobody_is_blamed(
    tmp_path, questions, expected
):
    record = replace(RECORD, embedded=Embedded("mine = no_such_package.f", ("import no_such_package",)))
    with pytest.raises(CannotMinify, match=r"cannot be tried here.*no_such_package") as why:
        minified(tmp_path, questions, record, described(), expected)
    assert "bug" not in str(why.value)


@pytest.mark.parametrize(("call", "forward_only"), [("torch.special.zeta(a, a)", True), ("a.sin()", False)])
def test_a_backward_that_eager_has_none_of_is_no_part_of_a_failure_before_it(
    tmp_path, questions, call, forward_only
):
    inputs = describe_inputs([torch.full((4,), 2.0, requires_grad=True)]).to_json()
    record = replace(RECORD, settings=CompileSettings(state=AmbientState(grad=True)))
    case = make(kind="compile_error", phase="compile", signature=IN_THE_COMPILE, triage=None)
    files = {
        "record.json": json.dumps(record.to_json()),
        "inputs.json": json.dumps(inputs),
        "graph.py": GRAPH.replace("torch.relu(a)", call),
    }
    start = search_start(write_case(tmp_path / "cases", case, files), questions)
    assert start.state.settings.forward_only is forward_only


def test_what_was_measured_once_is_not_measured_again(tmp_path, questions):
    record = replace(RECORD, settings=CompileSettings(state=AmbientState(grad=False)))
    state = state_of_record(record, GRAPH, described(), tmp_path, IN_THE_RUN, questions)
    assert questions.tolerances(state) == questions.tolerances(state)
    assert questions.eager_seconds(state) == questions.eager_seconds(state) is not None
    assert len(questions.workers.trials) == 2
