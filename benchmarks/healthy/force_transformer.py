"""Forces as gradients of an energy that an attention network predicts."""

import torch
from torch import nn


class Energy(nn.Module):
    def __init__(self, width=16, layers=2):
        super().__init__()
        self.embed = nn.Linear(3, width)
        self.mix = nn.ModuleList([nn.Linear(width, 3 * width) for _ in range(layers)])
        self.read = nn.Linear(width, 1)

    def forward(self, places):
        x = self.embed(places)
        for mix in self.mix:
            q, k, v = mix(x).chunk(3, -1)
            x = x + torch.softmax(q @ k.transpose(-2, -1) / 4.0, -1) @ v
        return self.read(x).sum()


torch.manual_seed(0)
model = Energy()


def forces(places):
    return -torch.func.grad(model)(places)


torch.compile(forces)(torch.randn(5, 3, requires_grad=True)).square().sum().backward()
