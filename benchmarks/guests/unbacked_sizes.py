"""Sizes that depend on values are captured."""

import torch

torch._dynamo.config.capture_dynamic_output_shape_ops = True
torch._dynamo.config.capture_scalar_outputs = True


@torch.compile(fullgraph=True)
def f(x):
    picked = x.nonzero()
    n = x.sum().int().item()
    torch._check(n >= 0)
    return picked.sum() + torch.zeros(n).numel()


for value in ([0, 1, 1], [1, 1, 1], [0, 0, 0]):
    print(f(torch.tensor(value)).item())
