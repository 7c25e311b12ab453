"""A plain dense tensor, added to and multiplied."""

import torch
from torch import nn


class Shift(nn.Module):
    def forward(self, x):
        return (x + 1) * x.relu()


torch.manual_seed(0)
with torch.no_grad():
    torch.compile(Shift())(torch.randn(4, 4))
