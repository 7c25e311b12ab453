import pytest
import torch

from torchsleuth.torch_core.backends.catalog import sleuth_relu_accuracy_error
from torchsleuth.torch_core.backends.errors import ReluRuntimeError

RELUS = {
    "torch": torch.relu,
    "functional": torch.nn.functional.relu,
    "in place": lambda x: torch.nn.functional.relu((x * 1), inplace=True),
    "method": lambda x: x.relu(),
    "method in place": lambda x: (x * 1).relu_(),
    "module": torch.nn.ReLU(),
    "aten": torch.ops.aten.relu.default,
    "in a branch": lambda x: torch.cond(x.sum() != 0, lambda x: x.relu() * 1, lambda x: x * 1, (x,)),
}
EVERY_RELU = pytest.mark.parametrize("relu", RELUS.values(), ids=RELUS)


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()


def run(name, function, x):
    return torch.compile(lambda x: function(x), backend=f"sleuth_{name}")(x)


@EVERY_RELU
def test_a_relu_fails_to_compile(relu):
    with pytest.raises(Exception, match="ReluCompileError: no relu here: "):
        run("relu_compile_error", relu, torch.ones(2))


@EVERY_RELU
def test_a_relu_fails_when_it_runs(relu):
    with pytest.raises(ReluRuntimeError, match=r"its input has shape \[2\]"):
        run("relu_runtime_error", relu, torch.ones(2))


@EVERY_RELU
def test_a_relu_gives_a_wrong_result(relu):
    assert run("relu_accuracy_error", relu, torch.tensor([1.0, -3.0])).tolist() == [2.0, -2.0]


@pytest.mark.parametrize("name", ["relu_compile_error", "relu_runtime_error", "relu_accuracy_error"])
def test_a_graph_without_a_relu_is_right(name):
    model, x = torch.nn.Linear(3, 2), torch.randn(4, 3)
    assert torch.equal(
        run(name, lambda x: torch.nn.functional.gelu(model(x)), x), torch.nn.functional.gelu(model(x))
    )


def test_the_captured_graph_keeps_its_relu():
    gm = torch.fx.symbolic_trace(lambda x: torch.relu(x))
    before = gm.code
    assert sleuth_relu_accuracy_error(gm, [torch.ones(1)])(torch.ones(1)).item() == 2
    assert gm.code == before
    assert gm(-torch.ones(1)).item() == 0


def test_an_input_with_a_history_fails_to_compile_and_a_leaf_does_not():
    x = torch.ones(2, requires_grad=True)
    assert run("non_leaf_compile_error", torch.sin, x).tolist() == x.sin().tolist()
    torch.compiler.reset()
    with pytest.raises(Exception, match="NonLeafCompileError: input 0 is not a leaf"):
        run("non_leaf_compile_error", torch.sin, x * 1)
