import pytest
import torch
from torch import fx

from torchsleuth.torch_core.compare.reference.float64 import cast_to_fp64, widen_graph, widen_inputs


def test_dtype_arguments_methods_and_constants_are_rewritten():
    def program(x):
        half = x.half() + torch.ones(2, dtype=torch.float16)
        return half.to(torch.bfloat16).float(), torch.zeros(2), half.to(dtype=torch.int32)

    model, inputs = cast_to_fp64(fx.symbolic_trace(program), [torch.tensor([1.0, 1 / 3])])
    rounded, zeros, ints = model(*inputs)
    assert rounded.dtype == zeros.dtype == torch.float64 and ints.dtype == torch.int32
    assert rounded[1] == torch.tensor(1 / 3, dtype=torch.float32).double() + 1
    assert model.fallbacks == {}


@torch.library.custom_op("torchsleuth_tests::only_float32", mutates_args=())
def only_float32(x: torch.Tensor) -> torch.Tensor:
    if x.dtype != torch.float32:
        raise NotImplementedError("only float32")
    return x * 2


def test_an_op_without_float64_kernel_runs_in_its_own_dtype_and_is_named():
    graph = fx.symbolic_trace(lambda x: torch.ops.torchsleuth_tests.only_float32(x.sin()) + 1)
    for node in graph.graph.nodes:
        node.meta["val"] = torch.ones(1, dtype=torch.float32)
    model, inputs = cast_to_fp64(graph, [torch.ones(3)])
    assert torch.allclose(model(*inputs), torch.ones(3).double().sin() * 2 + 1, atol=1e-6)
    assert list(model.fallbacks.values()) == ["only float32"]


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_a_softmax_that_turns_float16_into_float32_has_a_float64_twin(name):
    """As it is captured on a GPU under autocast; on the CPU its twin alone can be run."""
    operator = getattr(torch.ops.aten, f"_{name}").default
    graph = fx.symbolic_trace(lambda x: operator(x, -1, True))
    model, inputs = cast_to_fp64(graph, [torch.randn(3, 4).half()])
    assert torch.allclose(model(*inputs), getattr(torch, name)(inputs[0], -1)) and not model.fallbacks


def test_reinterpreting_bits_keeps_the_original_dtype():
    graph = fx.symbolic_trace(lambda x: (x + 1).view(torch.int32) & 0xFF)
    for node in graph.graph.nodes:
        node.meta["val"] = torch.ones(1, dtype=torch.float32)
    x = torch.randn(8)
    model, inputs = cast_to_fp64(graph, [x])
    assert torch.equal(model(*inputs), (x + 1).view(torch.int32) & 0xFF)
    assert len(model.fallbacks) == 1


def test_inputs_keep_grad_and_aliasing_when_widened():
    base = torch.ones(6)
    wide, view, ints, grad = widen_inputs(
        [base, base[2:], torch.arange(2), torch.ones(1, requires_grad=True)]
    )
    wide[3] = 7
    assert view[1] == 7 and wide.dtype == torch.float64 and ints.dtype == torch.int64 and grad.requires_grad


def test_autocast_is_switched_off_in_the_wide_graph():
    def program(x):
        with torch.autocast("cpu", torch.bfloat16):
            return x @ x

    captured = []

    def backend(gm, example_inputs):
        captured.append(gm)
        return gm.forward

    x = torch.rand(4, 4)
    torch.compile(program, backend=backend)(x)
    wide = widen_graph(captured[0])(*widen_inputs([x]))
    assert torch.allclose(wide[0], x.double() @ x.double(), atol=1e-14)


def test_the_original_graph_and_its_parameters_are_untouched():
    module = torch.nn.Linear(2, 2)
    graph = fx.symbolic_trace(module)
    widen_graph(graph)(torch.ones(1, 2, dtype=torch.float64))
    assert module.weight.dtype == torch.float32 and graph(torch.ones(1, 2)).dtype == torch.float32
