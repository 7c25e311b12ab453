"""Sizes that change make a dynamic graph; another dtype another one."""

import torch
from torch._dynamo.utils import counters


@torch.compile
def f(x):
    return (x * x.shape[0]).sum() / x.numel()


for n in (3, 4, 9):
    print(f(torch.ones(n, 2)).item())
print(f(torch.ones(3, 2, dtype=torch.float64)).dtype)
marked = torch.ones(5)
torch._dynamo.mark_dynamic(marked, 0)
print(torch.compile(lambda x: x.cumsum(0)[-1])(marked).item(), counters["stats"]["unique_graphs"])
