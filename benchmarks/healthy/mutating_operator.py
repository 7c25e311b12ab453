"""A custom operator that writes to its arguments, which share no memory, with dynamic shapes."""

import torch


@torch.library.custom_op("healthy::shift_both", mutates_args={"left", "right"})
def shift_both(left: torch.Tensor, right: torch.Tensor) -> None:
    left.add_(1)
    right.sub_(1)


def mix(left, right):
    shift_both(left, right)
    return left[0] * right[0]


torch.manual_seed(0)
compiled = torch.compile(mix, dynamic=True)
for rows in (3, 5):
    compiled(torch.randn(rows, 4), torch.randn(rows, 4))
