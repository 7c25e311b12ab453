"""The Jacobian of a matrix cost in half precision, with one sum in it."""

import torch


def cost(x):
    return torch.sum(torch.mm(x + 0.5, x))


point = (torch.arange(1, 10, dtype=torch.float16) / 10).reshape(3, 3)
torch.compile(torch.func.jacfwd(cost))(point)
