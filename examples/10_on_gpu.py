"""An index out of range on the GPU shows in a later call; torchsleuth names the graph that really failed.

Without a CUDA device:

    $ python 10_on_gpu.py
    no CUDA device here
"""

import torch

if not torch.cuda.is_available():
    raise SystemExit("no CUDA device here")


@torch.compile
def pick(x, i):
    return x[i] * 2


pick(torch.randn(8, device="cuda"), torch.tensor([3, 99], device="cuda"))
print(torch.ones(3, device="cuda").sum().item())
