"""Another default dtype, and integers, booleans and halves beside it."""

import torch

torch.set_default_dtype(torch.float64)


@torch.compile
def f(x, n, mask, half):
    return torch.where(mask, x / 3, x) + n // 2, half * 2 + torch.ones(3, dtype=torch.float16), torch.zeros(2)


out = f(torch.ones(3), torch.arange(3), torch.tensor([True, False, True]), torch.ones(3, dtype=torch.float16))
print([(value.dtype, value.tolist()) for value in out])
