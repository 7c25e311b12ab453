"""A directional derivative in forward mode through normalised layers."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 1))


def slope(x, direction):
    value, change = torch.func.jvp(net, (x,), (direction,))
    return value + change


with torch.no_grad():
    torch.compile(slope)(torch.randn(2, 3), torch.randn(2, 3))
