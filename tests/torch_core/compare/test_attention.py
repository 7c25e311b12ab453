"""Attention kernels: when they draw, which of their results mean something, and how much of a difference is noise."""

import operator

import pytest
import torch
from torch import fx

from torchsleuth.torch_core.compare.reference.opkinds import draws, means_nothing
from torchsleuth.torch_core.compare.verdict.calibrate import UNCALIBRATED
from torchsleuth.torch_core.compare.verdict.judge import judge
from torchsleuth.torch_core.compare.verdict.verdict import DIVERGED

aten = torch.ops.aten
FORWARD = {
    "flash": (aten._scaled_dot_product_flash_attention.default, 3, 3),
    "efficient": (aten._scaled_dot_product_efficient_attention.default, 4, 5),
    "cudnn": (aten._scaled_dot_product_cudnn_attention.default, 4, 5),
}


def attention_node(kind: str, dropout: float) -> fx.Node:
    target, tensors, place = FORWARD[kind]
    graph = fx.Graph()
    given = [graph.placeholder(f"x{i}") for i in range(tensors)]
    return graph.call_function(target, (*given, *[True] * (place - tensors), dropout))


@pytest.mark.parametrize("kind", FORWARD)
def test_attention_draws_only_where_it_drops(kind):
    assert not draws(attention_node(kind, 0.0))
    assert draws(attention_node(kind, 0.1))


def test_the_backward_of_attention_is_told_what_was_drawn():
    graph = fx.Graph()
    given = [graph.placeholder(f"x{i}") for i in range(15)]
    target = aten._scaled_dot_product_cudnn_attention_backward.default
    assert not draws(graph.call_function(target, (*given[:13], 0.1, False)))


@pytest.mark.parametrize(("dropout", "empty"), [(0.0, True), (0.1, False)])
def test_seeds_of_attention_mean_something_only_with_dropout(dropout, empty):
    node = attention_node("cudnn", dropout)
    seed = node.graph.call_function(operator.getitem, (node, 6))
    output = node.graph.call_function(operator.getitem, (node, 0))
    assert means_nothing(seed) is empty and not means_nothing(output)


def attend(q, k, v):
    # A step before it, so that what a compiler keeps unrounded reaches the attention.
    scaled = q * 1.7
    return torch.nn.functional.scaled_dot_product_attention(scaled, k, v, dropout_p=0.2)


def attend_fused(q, k, v):
    """As a compiler does it that rounds the scaled query elsewhere: one in fifty elements is a unit off."""
    scaled = q * 1.7
    off = torch.arange(scaled.numel()).view(scaled.shape) % 50 == 0
    nudged = torch.where(off, scaled * (1 + 2.0**-7), scaled)
    return torch.nn.functional.scaled_dot_product_attention(nudged, k, v, dropout_p=0.2)


def test_attention_with_dropout_has_the_noise_of_its_inputs():
    torch.manual_seed(0)
    inputs = [torch.randn(2, 4, 64, 32, dtype=torch.bfloat16) for _ in range(3)]
    graph = fx.symbolic_trace(attend)
    healthy = judge(graph, inputs, attend_fused, rng_matched=True, calibration=UNCALIBRATED)
    assert not healthy.diverged, healthy

    def wrong(q, k, v):
        return attend(q, k, v.roll(1, -2))

    assert judge(graph, inputs, wrong, rng_matched=True, calibration=UNCALIBRATED).kind == DIVERGED
