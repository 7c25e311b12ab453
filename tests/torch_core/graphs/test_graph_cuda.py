"""What only a CUDA device shows: device constants, device random numbers, the user's Triton kernels."""

import pytest
import torch
from captured import capture
from same_graph import same_graph

from torchsleuth.script_runtime.reader import read_graph
from torchsleuth.torch_core.graphs.printer import print_graph

try:
    import triton
    import triton.language as tl

    @triton.jit
    def my_double(source, target, count, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(target + at, 2 * tl.load(source + at, mask=at < count), mask=at < count)

except ImportError:
    my_double = None

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def restored(gm):
    printed = print_graph(gm)
    return read_graph(
        printed.source, namespace={**printed.references, "constant": printed.constants.__getitem__}
    )


def test_graphs_on_the_device_are_read_back_equal():
    def program(x, w):
        y = torch.nn.functional.dropout(x @ w, 0.3) + torch.tensor([0.5, -0.0], device="cuda").sum()
        return torch.nn.functional.scaled_dot_product_attention(y[None], y[None], y[None])

    x, w = torch.randn(16, 16, device="cuda", requires_grad=True), torch.randn(16, 16, device="cuda")
    graphs = capture(program, x, w, backward=True)
    assert {graph.level for graph in graphs} == {"dynamo", "forward", "backward"}
    for captured in graphs:
        assert same_graph(captured.gm, restored(captured.gm)) is None
    assert "cuda:0" in print_graph(graphs[1].gm).source


def test_a_constant_comes_back_on_its_device():
    graph = torch.fx.Graph()
    graph.output((graph.get_attr("held"), graph.get_attr("turned")))
    root = torch.nn.Module()
    root.held = torch.tensor([1.5, float("nan")], device="cuda")
    root.turned = torch.arange(6.0, device="cuda").view(2, 3).t()
    gm = torch.fx.GraphModule(root, graph)
    assert not print_graph(gm).constants
    again = restored(gm)
    assert same_graph(gm, again) is None
    assert torch.equal(again.turned, root.turned)
    assert again.held.tolist()[0] == 1.5 and again.held.isnan().tolist() == [False, True]


def without_comments(gm):
    source = print_graph(gm).source
    return [
        text
        for line in source.splitlines()
        if (text := line.partition("  #")[0].rstrip()).strip("# ") and not line.lstrip().startswith("#")
    ]


def test_a_users_triton_kernel_is_read_back_equal_and_does_the_same():
    pytest.importorskip("triton")

    def program(x):
        out = torch.empty_like(x)
        my_double[(1,)](x, out, x.numel(), BLOCK=64)
        return out + 1

    x = torch.randn(50, device="cuda")
    for captured in capture(program, x):
        again = restored(captured.gm)
        # Lines and shapes beside the calls are those of the capture, which a graph that was read has not.
        assert without_comments(again) == without_comments(captured.gm)
        [result] = again(x)
        assert torch.equal(result, 2 * x + 1)
