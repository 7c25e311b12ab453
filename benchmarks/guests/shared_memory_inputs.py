"""Inputs that are views of one another are changed in place."""

import torch


@torch.compile
def shift(a, b):
    a.add_(1)
    b.mul_(2)
    return a[1:].clone(), b.clone()


base = torch.arange(8.0)
for _ in range(2):
    left, right = shift(base[:6], base[2:])
    left[0] = 7
    print(base.tolist(), left.tolist(), right.tolist())
