"""Every batch is compiled anew. What must not come back is claimed with `torchsleuth.no_recompilations`.

$ python 06_recompiles.py
2 recompilations:
tensor 'x' size mismatch at index 0. expected 8, actual 9
tensor 'x' size mismatch at index 0. expected 9, actual 10
"""

import torch

import torchsleuth


@torch.compile(backend="eager", dynamic=False)
def step(x):
    return x.sin().sum()


step(torch.randn(8))
try:
    with torchsleuth.no_recompilations():
        for size in (9, 10):
            step(torch.randn(size))
except AssertionError as claim:
    print(claim)
