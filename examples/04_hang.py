"""It never ends. (The bug is planted: a backend that waits for ever where it sees cumsum.)

$ torchsleuth run --timeout 8 04_hang.py
$ torchsleuth show last
error      hang while compiling
your line  04_hang.py:22: return torch.cumsum(x.cos(), 0) + 1
at fault   backend, stuck torch.cumsum
repro      repro.py; verified: failed the same way in 3 of 3 fresh processes
"""

import torch


def stuck(graph, inputs):
    while any(node.target is torch.cumsum for node in graph.graph.nodes):
        pass
    return graph.forward


@torch.compile(backend=stuck)
def model(x):
    return torch.cumsum(x.cos(), 0) + 1


model(torch.randn(8))
