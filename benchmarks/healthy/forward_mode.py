"""A directional derivative in forward mode of a smooth field."""

import torch


def field(x):
    return torch.tanh(x * 2.0).sum(-1)


def slope(x, direction):
    value, change = torch.func.jvp(field, (x,), (direction,))
    return value + change


torch.manual_seed(0)
with torch.no_grad():
    torch.compile(slope)(torch.randn(2, 3), torch.randn(2, 3))
