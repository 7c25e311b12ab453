"""Which nodes are at fault, and which function or module of the program they are in."""

import pytest
import torch

from made import make
from made_graphs import aten, traced
from torchsleuth.core.cases.model import Minified, Triage
from torchsleuth.core.cases.record import CompileSettings, GraphRecord
from torchsleuth.search.cure.candidates import (
    class_of,
    function_of,
    module_expression,
    nodes_of_functions,
    nodes_of_modules,
    suspects_of,
)
from torchsleuth.search.minify.case_state import SearchStart
from torchsleuth.torch_core.graphs.source_line import SourceLine


def start_of(traceback=""):
    def graph(x):
        a = aten.sin.default(x)
        b = aten.relu.default(a)
        return (aten.sin.default(b),)

    case = make()
    return SearchStart(
        traced(graph, torch.ones(2)), case.signature, GraphRecord(CompileSettings()), traceback
    )


def test_what_triage_named_comes_before_every_guess():
    case = make(
        triage=Triage(nodes=("relu_default",), ops=("aten.relu.default",)),
        minified=Minified(ops=("aten.sin.default",)),
    )
    found = suspects_of(case, start_of("target: aten.sin.default"))
    assert found.nodes == ("relu_default",) and found.ops == ("aten.relu.default",)


def test_an_operator_stands_for_all_nodes_that_call_it():
    found = suspects_of(make(triage=Triage(ops=("aten.sin.default",))), start_of())
    assert found.nodes == ("sin_default",) and found.alike == ("sin_default", "sin_default_1")


def test_without_triage_the_smallest_repro_names_the_operators():
    assert suspects_of(make(minified=Minified(ops=("aten.relu.default",))), start_of()).nodes == (
        "relu_default",
    )


def test_without_anything_else_the_error_does():
    assert suspects_of(make(), start_of("target: aten.relu.default")).ops == ("aten.relu.default",)


def test_where_nothing_is_said_nobody_is_suspected():
    found = suspects_of(make(), start_of())
    assert (found.ops, found.nodes, found.alike) == ((), (), ())


SOURCE = """class A:
    def forward(self, x):
        return x

class B:
    def forward(self, x):
        y = x + 1
        return y
"""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(SOURCE)
    return str(path)


def at(file, number, code, function="forward"):
    return SourceLine(file, number, function, code)


def test_of_several_functions_of_one_name_it_is_the_one_around_the_line(model):
    found = function_of(at(model, 7, "y = x + 1"))
    assert found.define == 6 and found.place == "model.py:6"


def test_a_file_that_has_changed_since_gives_no_line(model):
    assert function_of(at(model, 7, "y = x * 2")).define is None
    assert function_of(at("/nowhere/model.py", 7, "y")).place == "model.py"


def test_a_lambda_or_a_script_is_no_function_to_put_a_decorator_on(model):
    assert function_of(at(model, 7, "y = x + 1", "<lambda>")) is None
    assert function_of(at(model, 7, "y = x + 1", "<module>")) is None


def test_nodes_of_a_function_are_not_those_of_another_of_the_same_name(model):
    lines = {"a": at(model, 3, "return x"), "b": at(model, 7, "y = x + 1"), "c": at(model, 8, "return y")}
    assert nodes_of_functions(lines, [function_of(lines["b"])]) == {"b", "c"}


def test_nodes_of_a_module_are_those_below_it_too():
    modules = {"a": "fc", "b": "fc.act", "c": "fc2", "d": ""}
    lines = {name: SourceLine("m.py", 1, module=module) for name, module in modules.items()}
    assert nodes_of_modules(lines, ["fc"]) == {"a", "b"}


def test_paths_of_modules_are_written_as_python():
    assert module_expression("encoder.layers.3.mlp") == "model.encoder.layers[3].mlp"
    assert module_expression("0.1") == "model[0][1]"


def test_only_a_class_of_torch_is_named_as_one():
    def calling(name):
        return SourceLine("m.py", 1, call=name)

    assert class_of({"a": calling("nn.ReLU"), "b": calling("nn.ReLU")}, ["a", "b"]) == "nn.ReLU"
    assert class_of({"a": calling("nn.ReLU"), "b": calling("nn.GELU")}, ["a", "b"]) is None
    assert class_of({"a": calling("relu")}, ["a"]) is None
    assert class_of({"a": calling("nn.Mine")}, ["a"]) is None
    assert class_of({}, ["a"]) is None
