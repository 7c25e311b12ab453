"""An encoder of three layers, one of which reads its keys from a cache kept in head order."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, cache=None):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        k = k if cache is None else cache
        weights = (q @ k.transpose(-2, -1) * (d // self.heads) ** -0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, n, d))


class Encoder(nn.Module):
    def __init__(self, width=32, heads=8):
        super().__init__()
        self.layers = nn.ModuleList([Attention(width, heads) for _ in range(3)])
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(3)])

    def forward(self, x, cache):
        for place, (layer, norm) in enumerate(zip(self.layers, self.norms)):
            x = x + layer(norm(x), cache if place == 1 else None)
        return x


torch.manual_seed(0)
with torch.no_grad():
    torch.compile(Encoder().eval())(torch.randn(2, 8, 32), torch.randn(2, 8, 8, 4))
