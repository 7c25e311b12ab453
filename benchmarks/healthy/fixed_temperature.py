"""A language model of three layers with a fixed temperature and a causal mask."""

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x, mask):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        weights = F.softmax(q @ k.transpose(-2, -1) / 2.5 + mask, dim=-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(b, n, d))
        return x + self.narrow(F.silu(self.wide(self.norms[1](x))))


class Model(nn.Module):
    def __init__(self, words=61, width=32, places=12):
        super().__init__()
        self.embed, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.layers = nn.ModuleList([Layer(width, 4) for _ in range(3)])
        self.register_buffer("mask", torch.full((places, places), -1e9).triu(1))

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, self.mask)
        return self.head(x).log_softmax(-1)


torch.manual_seed(0)
with torch.no_grad():
    torch.compile(Model().eval())(torch.randint(0, 61, (2, 12)))
