"""Compiling takes longer than running: forty layers in one function, forward and backward.

$ torchsleuth profile 07_slow_to_compile.py
done
"""

import torch

layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(40))


@torch.compile(backend="aot_eager")
def model(x):
    for layer in layers:
        x = layer(x).relu()
    return x.sum()


model(torch.randn(4, 16)).backward()
print("done")
