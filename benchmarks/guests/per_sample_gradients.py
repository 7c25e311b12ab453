"""torch.func: per-sample gradients by vmap over grad, compiled."""

import torch
from torch.func import functional_call, grad, vmap

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
weights = {name: value.detach() for name, value in net.named_parameters()}


def loss(params, x):
    return functional_call(net, params, (x,)).sum()


per_sample = torch.compile(vmap(grad(loss), in_dims=(None, 0)))
found = per_sample(weights, torch.randn(5, 3))
print({name: (tuple(g.shape), g.sum().item().hex()) for name, g in found.items()})
