import torch


def summary(x, y):
    z = x + y
    names = sorted(name for name in dir() if name != "names")
    return z * len(names)


class Model(torch.nn.Module):
    def forward(self, x):
        return summary(x.sin(), x.cos())


torch.compile(Model(), fullgraph=True)(torch.randn(3))
