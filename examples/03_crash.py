"""The process dies without a traceback. (The bug is planted: a backend that aborts where it sees erf.)

$ torchsleuth run 03_crash.py
$ torchsleuth show last
error      SIGABRT while compiling
your line  03_crash.py:25: return torch.erf(x.sin() + 1) * 2
at fault   backend, fragile torch.erf
minified   1 call: torch.erf
repro      repro.py; verified: failed the same way in 3 of 3 fresh processes
"""

import os

import torch


def fragile(graph, inputs):
    if any(node.target is torch.erf for node in graph.graph.nodes):
        os.abort()
    return graph.forward


@torch.compile(backend=fragile)
def model(x):
    return torch.erf(x.sin() + 1) * 2


model(torch.randn(8))
