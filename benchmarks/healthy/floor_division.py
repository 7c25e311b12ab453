"""Division rounded down, of finite values of both signs."""

import torch


def buckets(value, width):
    return torch.div(value, width, rounding_mode="floor")


torch.compile(buckets)(
    torch.tensor([-7.5, -0.2, 0.0, 3.3, 9.9], dtype=torch.float64), torch.tensor(2.5).double()
)
