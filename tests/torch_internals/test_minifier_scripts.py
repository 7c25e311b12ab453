"""Scripts of PyTorch's own minifier are taken as they mean it: graph, level, sizes, settings, inference or training."""

import ast
import textwrap
from concurrent.futures import Future

import pytest
import torch

from torchsleuth.core.processes.limits import Limits
from torchsleuth.core.protocol.trials import Outcome
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.search.minify.case_state import CannotMinify
from torchsleuth.search.minify.script_cases import case_of_script
from torchsleuth.search.minify.states import NoAnswer, Questions
from torchsleuth.torch_internals.minifier_scripts import read_foreign, settings_of
from trials_here import TrialsHere

HEAD = """\
import torch
from torch import tensor, device
from math import inf
{more}
class Repro(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
{init}
    def forward(self, {parameters}):
{body}

mod = Repro()
def load_args(reader):
{load}
load_args._version = 0
"""
AFTER = {
    "aot": "run_repro(mod, load_args, accuracy=False, command='minify', save_dir=None, tracing_mode='real'{how})",
    "dynamo": "run_repro(mod, load_args, accuracy=False, command='minify', save_dir=None, autocast=False{how})",
}
ONE_TENSOR = """\
    buf0 = reader.storage(None, 256)
    reader.tensor(buf0, (4, 16), is_leaf=True)
"""
BRANCHES = """\
class true_graph_0_0(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, arg0_1):
        sin = torch.ops.aten.sin.default(arg0_1);  arg0_1 = None
        return (sin,)

class false_graph_0_1(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, arg0_1):
        cos = torch.ops.aten.cos.default(arg0_1);  arg0_1 = None
        return (cos,)
"""


@pytest.fixture
def written(tmp_path):
    """A script with these statements as its graph, on disk."""

    def write(body, *, level="aot", more="", init="", parameters="arg0_1", load=ONE_TENSOR, how=""):
        lines = textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 8)
        text = HEAD.format(more=more, init=init, parameters=parameters, body=lines, load=load)
        text += (
            f"if __name__ == '__main__':\n    from torch._dynamo.repro.after_{level} import run_repro\n    "
        )
        path = tmp_path / "minifier_launcher.py"
        path.write_text(text + AFTER[level].format(how=how) + "\n")
        return path

    return write


@pytest.mark.parametrize("level", ["aot", "dynamo"])
def test_nested_graphs_that_are_written_as_classes_are_kept(written, level):
    body = """
        gt = arg0_1 > 0;
        any_1 = gt.any();  gt = None
        true_graph_0 = self.true_graph_0
        false_graph_0 = self.false_graph_0
        cond = torch.ops.higher_order.cond(any_1, true_graph_0, false_graph_0, (arg0_1,));  any_1 = arg0_1 = None
        getitem = cond[0];  cond = None
        return (getitem,)
    """
    init = "        self.true_graph_0 = true_graph_0_0()\n        self.false_graph_0 = false_graph_0_1()\n"
    graph = read_foreign(written(body, level=level, more=BRANCHES, init=init)).graph
    assert torch.ops.higher_order.cond in [node.target for node in graph.graph.nodes]
    assert isinstance(graph.get_submodule("true_graph_0"), torch.fx.GraphModule)
    x = torch.full((4, 16), 2.0)
    assert torch.equal(graph(x)[0], x.sin()) and torch.equal(graph(-x)[0], (-x).cos())


def test_settings_that_imply_others_are_read_with_the_rest(written):
    text = """\
import torch
torch._inductor.config.load_config({'numerics': 'strict', 'emulate_precision_casts': True})
torch._inductor.config.max_fusion_size = 3
torch.fx.experimental._config.use_duck_shape = False
torch._functorch.config.fake_tensor_allow_unsafe_data_ptr_access = True
"""
    assert settings_of(ast.parse(text)) == {
        "torch._inductor.config": {
            "numerics": "'strict'",
            "emulate_precision_casts": "True",
            "max_fusion_size": "3",
        },
        "torch.fx.experimental._config": {"use_duck_shape": "False"},
    }


def test_names_that_torch_writes_and_does_not_import_are_known(written):
    body = """
        truediv = arg0_1 / 3;  arg0_1 = None
        ceil = math_ceil(truediv);  truediv = None
        where = torch.where(arg1_1 > 5, arg1_1, nan)
        wrapped_add = torch__dynamo_utils_wrapped_add(arg1_1, ceil);  ceil = None
        return (where, wrapped_add)
    """
    body = body.replace("arg1_1 > 5,", "gt,").replace("where =", "gt = arg1_1 > 5\n        where =")
    load = "    reader.symint(4, expr='s0')\n" + ONE_TENSOR
    script = written(
        body, level="dynamo", parameters="arg0_1 : torch.SymInt, arg1_1 : torch.Tensor", load=load
    )
    where, added = read_foreign(script).graph(4, torch.ones(2, 3))
    assert where.isnan().all() and torch.as_tensor(added).tolist() == [[3.0] * 3] * 2


def test_what_is_done_in_place_and_attributes_are_nodes_as_they_were(written):
    body = """
        l_x_ = arg0_1
        clone = l_x_.clone();  l_x_ = None
        clone += 2;  iadd = clone;  clone = None
        iadd[0] = 7.0;  setitem = iadd
        getattr_1 = iadd.T;  iadd = setitem = None
        return (getattr_1,)
    """
    graph = read_foreign(written(body, level="dynamo", parameters="arg0_1 : torch.Tensor")).graph
    (out,) = graph(torch.ones(2, 3))
    assert out.tolist() == [[7.0, 3.0]] * 3
    assert [str(n.target).rpartition("_")[2] for n in graph.graph.nodes if n.op == "call_function"]


def test_symbolic_sizes_stay_symbolic(written, tmp_path):
    load = """\
    reader.symint(4, expr='s77')
    buf0 = reader.storage(None, 64*s77)
    reader.tensor(buf0, (s77, 16), is_leaf=True)
"""
    body = "tanh = torch.ops.aten.tanh.default(arg1_1);  arg1_1 = None\nreturn (tanh, arg0_1)"
    script = written(body, parameters="arg0_1, arg1_1", load=load, more="s77 = 4\n")
    told = Questions(TrialsHere(), tmp_path / "values").foreign_script(script, tmp_path / "store")["inputs"]
    assert told["symbols"]["s77"]["hint"] == 4
    number, tensor = told["inputs"]
    assert (number["kind"], number["expr"]) == ("symint", "s77")
    assert list(tensor["shape_expr"]) == ["s77", "16"] and tensor["shape"] == [4, 16]


def test_a_backend_that_the_script_lost_is_said_and_not_taken_for_inductor(written, tmp_path):
    script = written("return (arg0_1,)", level="dynamo", how=", backend=None")
    with pytest.raises(NoAnswer, match="its backend is a function of the program's"):
        Questions(TrialsHere(), tmp_path / "values").foreign_script(script, tmp_path / "store")


class FailsAs:
    """Answers a search's questions here; a graph fails where it is compiled for inference."""

    count, limits = 1, Limits()

    def __init__(self):
        self.tried = []

    def run(self, trial, *, limits=None, fresh=False):
        if trial.question.name == "FOREIGN_SCRIPT":
            return TrialsHere().run(trial)
        inference = bool(trial.settings.compile_kwargs.get("is_inference"))
        self.tried.append(inference)
        return Outcome(
            Signature("compile_error", "compile", ("ValueError",), "planted") if inference else None, 0.1
        )

    def submit(self, trial, **how):
        ticket = Future()
        ticket.set_result(self.run(trial, **how))
        return ticket


@pytest.mark.parametrize(
    ("how", "tried"), [(", is_inference=True", [True]), ("", [False, True])], ids=["said", "unsaid"]
)
def test_a_graph_of_an_inference_is_compiled_as_one(written, tmp_path, how, tried):
    workers = FailsAs()
    folder = case_of_script(
        written("return (arg0_1,)", how=how), tmp_path / "cases", Questions(workers, tmp_path / "values")
    )
    assert workers.tried == tried
    assert '"is_inference": true' in folder.file("record.json").read_text()


def test_a_graph_of_a_training_is_compiled_as_one(written, tmp_path):
    workers = FailsAs()
    with pytest.raises(CannotMinify, match="does not fail here"):
        case_of_script(
            written("return (arg0_1,)", how=", is_inference=False"),
            tmp_path / "cases",
            Questions(workers, tmp_path / "values"),
        )
    assert workers.tried == [False]


def test_a_script_that_torch_itself_cannot_read_names_the_way_out(written, tmp_path):
    init = "        self.true_graph_0 = <lambda>()\n"
    with pytest.raises(CannotMinify, match=r"run the program itself: torchsleuth run"):
        case_of_script(
            written("return (arg0_1,)", init=init),
            tmp_path / "cases",
            Questions(FailsAs(), tmp_path / "values"),
        )
