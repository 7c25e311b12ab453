"""The running minimum of a window function."""

import torch


def lowest_so_far():
    window = torch.bartlett_window(8, periodic=False)
    return torch.cummin(window.clone(), 0)[0]


torch.compile(lowest_so_far)()
