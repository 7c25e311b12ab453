"""Fractional pooling with given samples, then response normalisation."""

import torch
import torch.nn.functional as F
from torch import nn


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        samples = torch.rand(1, 3, 2, dtype=torch.float64)
        self.pool = nn.FractionalMaxPool2d(2, output_size=(4, 4), _random_samples=samples)
        self.norm = nn.LocalResponseNorm(2, alpha=0.03)

    def forward(self, x):
        return F.hardsigmoid(F.logsigmoid(self.norm(self.pool(x))))


torch.manual_seed(0)
with torch.no_grad():
    torch.compile(Pooled().eval())(torch.rand(1, 3, 16, 16, dtype=torch.float64))
