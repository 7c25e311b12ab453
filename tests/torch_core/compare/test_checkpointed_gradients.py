"""Gradients through activation checkpointing with random numbers: right ones pass, wrong ones do not."""

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from torchsleuth.torch_core.compare.verdict.look import judge_gradients


def captured(function, *inputs):
    graphs = []

    def keep(gm, example_inputs):
        graphs.append(gm)
        return gm.forward

    torch._dynamo.reset()
    torch.compile(function, backend=keep)(*inputs)
    return graphs[0]


def block(h):
    return F.dropout(torch.relu(h), 0.5, True)


def checkpointed(w, x):
    return checkpoint(block, x * w, use_reentrant=False).sin()


def test_recomputed_dropout_is_not_taken_for_a_wrong_gradient():
    inputs = [torch.randn(8, requires_grad=True), torch.randn(4, 8)]
    graph = captured(checkpointed, *inputs)

    def plain(w, x):
        return (block(x * w).sin(),)

    def biased(w, x):
        return (block(x * w * 1.001).sin(),)

    assert not judge_gradients(graph, inputs, plain, rng_matched=True).diverged
    assert judge_gradients(graph, inputs, biased, rng_matched=True).diverged
