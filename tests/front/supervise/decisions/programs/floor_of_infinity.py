import torch


@torch.compile
def shares(x):
    return torch.div(x.neg(), 0.5, rounding_mode="floor") + 1


print(shares(torch.tensor([float("inf"), 1.0, float("-inf"), 2.0])))
