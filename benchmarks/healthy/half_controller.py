"""A half-precision controller that feeds the sensitivity of a cost back into its head."""

import torch
import torch.nn.functional as F
from torch import nn


class Controller(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.read, self.gain = nn.Linear(6, width), nn.Linear(width, 9)
        self.body = nn.ModuleList([nn.Linear(width, width) for _ in range(4)])
        self.head = nn.Linear(width + 9, 2)

    def forward(self, state):
        x = self.read(state)
        for layer in self.body:
            x = x + F.silu(layer(x))
        gains = torch.sigmoid(self.gain(x.mean(0))).view(3, 3)
        slope = torch.func.jacfwd(lambda k: torch.sum(torch.mm(k, k + 0.25)))(gains)
        return self.head(torch.cat([x, torch.tanh(slope).reshape(1, 9).expand(x.shape[0], 9)], 1))


torch.manual_seed(0)
with torch.no_grad():
    torch.compile(Controller().eval().half())(torch.randn(4, 6).half())
