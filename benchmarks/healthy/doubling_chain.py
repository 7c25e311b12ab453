"""Sums and products of the last two values, few enough for the compiler, with gradients."""

import torch


def chain(a, b):
    values = [a, b]
    for _ in range(4):
        values += [values[-1] + values[-2], values[-1] * values[-2]]
    return values[-1] + values[-2]


a, b = torch.tensor(0.3, requires_grad=True), torch.tensor(0.7, requires_grad=True)
torch.compile(chain)(a, b).backward()
