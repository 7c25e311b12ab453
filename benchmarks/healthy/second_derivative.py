"""Forward over forward mode: the second derivative of a smooth function of a matrix."""

import torch


def energy(t):
    return torch.sum(torch.sin(t) * t + t**3)


point = torch.arange(1, 10, dtype=torch.float32).reshape(3, 3) / 10
torch.compile(torch.func.jacfwd(torch.func.jacfwd(energy)))(point)
