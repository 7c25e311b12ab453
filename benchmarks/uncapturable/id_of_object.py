import gc

import torch


class Cache:
    def __init__(self):
        self.store = {}

    def get(self, x):
        gc.collect()
        return self.store.get("x", x)


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cache = Cache()
        self.q = torch.nn.Linear(4, 4)

    def forward(self, x):
        k = self.cache.get(self.q(x))
        return torch.softmax(k @ x.transpose(-1, -2), -1)


torch.compile(Attention(), fullgraph=True)(torch.randn(1, 3, 4))
