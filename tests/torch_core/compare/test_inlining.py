import torch
from torch.utils.checkpoint import checkpoint

from torchsleuth.torch_core.compare.reference.eager import inlined
from torchsleuth.torch_core.compare.verdict.calibrate import UNCALIBRATED
from torchsleuth.torch_core.compare.verdict.judge import judge
from torchsleuth.torch_core.compare.verdict.verdict import WITHIN_NOISE


def captured_graph(program, *inputs):
    found = []

    def backend(gm, example_inputs):
        found.append((gm, example_inputs))
        return gm.forward

    torch.compile(program, backend=backend, fullgraph=True, dynamic=False)(*inputs)
    return found[0]


def layer(x, w):
    for _ in range(6):
        x = torch.tanh(x @ w) * 1.1 + x * 0.1
    return x


def program(x, w):
    return checkpoint(layer, checkpoint(layer, x, w, use_reentrant=False), w, use_reentrant=False).sum(1)


def test_a_checkpointed_layer_is_written_out_and_computes_the_same():
    x, w = torch.rand(8, 16, requires_grad=True), torch.rand(16, 16)
    graph, inputs = captured_graph(program, x, w)
    flat = inlined(graph)
    calls = [n for n in flat.graph.nodes if n.op == "call_function"]
    assert len(calls) > 40 and not any("checkpoint" in str(n.target) for n in calls)
    assert torch.equal(flat(*inputs)[0], graph(*inputs)[0])


def test_a_graph_without_nested_graphs_is_returned_as_it_is():
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    assert inlined(graph) is graph


def test_the_noise_inside_a_checkpointed_layer_is_known():
    x, w = torch.randn(64, 16).bfloat16().requires_grad_(), (torch.randn(16, 16) * 0.5).bfloat16()
    graph, inputs = captured_graph(program, x, w)

    def fused(*args):
        return tuple(v.bfloat16() for v in graph(*(a.float() for a in args)))

    assert judge(graph, inputs, fused, calibration=UNCALIBRATED).kind == WITHIN_NOISE
