"""Keys split into heads and transposed, under no_grad."""

import torch
from torch import nn


class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(64, 64)

    def forward(self, x):
        heads = self.project(x).view(2, 20, 8, 8).transpose(1, 2)
        return heads @ heads.transpose(-2, -1)


torch.manual_seed(0)
with torch.no_grad():
    torch.compile(Scores().eval(), fullgraph=True)(torch.randn(2, 20, 64))
