"""Warnings come where and as often as they do."""

import warnings

import torch


@torch.compile
def noisy(x):
    y = x.sin()
    warnings.warn("halfway", stacklevel=1)
    return y.cos()


def old():
    warnings.warn("old", DeprecationWarning, stacklevel=1)
    return 1


warnings.simplefilter("default")
for _ in range(3):
    noisy(torch.ones(2))
    print(old(), torch.tensor([1.0]).new_tensor(torch.tensor([2.0])).item())
