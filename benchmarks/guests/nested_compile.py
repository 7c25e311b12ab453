"""Compiled functions call compiled functions and modules."""

import torch

inner = torch.compile(lambda x: x.sin() + 1)
layer = torch.compile(torch.nn.Linear(3, 3, bias=False))
with torch.no_grad():
    layer.weight.fill_(0.5)


@torch.compile
def outer(x):
    return inner(layer(x)) * inner(x)


print(outer(torch.ones(2, 3)).sum().item().hex(), type(layer).__name__)
