"""Indices, scatters, sorts and ties."""

import torch


@torch.compile
def f(x, index):
    grouped = torch.zeros(4).scatter_add(0, index, x)
    values, order = torch.sort(x, stable=True, descending=True)
    return grouped, values, order, x.topk(2).indices, torch.searchsorted(values.flip(0), x), x.unique()


for value in f(torch.tensor([3.0, 1.0, 3.0, 2.0, 0.0]), torch.tensor([0, 1, 0, 3, 3])):
    print(value.tolist())
