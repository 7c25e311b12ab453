"""A compile without idle work: less is done, and the code is the same to the letter."""

import contextlib
import gc
import importlib
from types import SimpleNamespace

import pytest
import torch
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from torchsleuth.torch_core.compare.divergence import parts

ROWS = {
    "fused rows": (lambda x, y: torch.softmax(F.layer_norm(x @ y, (64,)), -1).amax(-1), (32, 64), (64, 64)),
    "a rest": (lambda x, y: (x.sum(1), x.var(0), x.argmax(1), torch.tanh(x) * y), (37, 67), (37, 67)),
    "two loops tiled": (lambda x, y: x.t().contiguous() + y, (64, 48), (48, 64)),
    "two loops, a rest": (lambda x, y: x.t().contiguous().exp() + y, (64, 50), (50, 64)),
    "small": (lambda x, y: (x.half() * y.half()).float().prod(), (3, 5), (3, 5)),
}


def code_of(function, inputs, monkeypatch):
    """The code that Inductor generates, nothing of it built; and how often it generated a node's loops."""
    graphs = importlib.import_module("torch._inductor.graph").GraphLowering
    nodes = importlib.import_module("torch._inductor.scheduler").SchedulerNode
    original = nodes.codegen
    texts, count = [], [0]

    def compile_to_module(graph):
        texts.append(graph.codegen()[0].value)
        return SimpleNamespace(call=None)

    def codegen(node, index_vars):
        count[0] += 1
        return original(node, index_vars)

    def flat(*given):
        out = function(*given)
        return out if isinstance(out, tuple) else (out,)

    made = make_fx(flat, decomposition_table=select_decomp_table(), tracing_mode="fake")(*inputs)
    with monkeypatch.context() as patched, torch.no_grad():
        patched.setattr(graphs, "compile_to_module", compile_to_module)
        patched.setattr(nodes, "codegen", codegen)
        parts.aten_ways({"is_inference": True}).compiled(made, list(inputs))
    return texts[0], count[0]


@pytest.mark.parametrize("row", ROWS)
def test_the_code_is_the_same(row, monkeypatch):
    function, *shapes = ROWS[row]
    inputs = [torch.randn(shape) for shape in shapes]
    objects = gc.get_freeze_count(), gc.get_threshold()
    sooner, few = code_of(function, inputs, monkeypatch)
    assert (gc.get_freeze_count(), gc.get_threshold()) == objects
    monkeypatch.setattr(parts, "without_idle_work", contextlib.nullcontext)
    text, all_of_them = code_of(function, inputs, monkeypatch)
    assert sooner == text
    assert few < all_of_them or "rest" in row or row == "small"
