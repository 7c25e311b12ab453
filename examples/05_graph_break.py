"""Dynamo cannot capture the function, and fullgraph=True forbids to break the graph.

$ torchsleuth run 05_graph_break.py
$ torchsleuth show last
error      Unsupported: Failed to trace builtin operator
your line  05_graph_break.py:17
at fault   dynamo, capture
works      setting reorderable_logging_functions
repro      repro.py; verified: failed the same way in 3 of 3 fresh processes
"""

import torch


def loss_of(x):
    total = (x * x).sum()
    print("loss", total)  # no part of a graph
    return total


@torch.compile(fullgraph=True, backend="eager")
def step(x):
    return loss_of(x.sin()) + 1


step(torch.randn(8))
