import os

import torch


def table(x):
    with open(os.devnull) as file:
        extra = len(file.read())
    return x.cumsum(0) + extra


class Model(torch.nn.Module):
    def forward(self, x):
        h = x.sin()
        return table(h).cos()


torch.compile(Model(), fullgraph=True)(torch.randn(4, 4))
