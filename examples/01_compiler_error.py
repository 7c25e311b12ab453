"""The compiler raises. (The bug is planted: a backend that cannot compile relu.)

$ torchsleuth run 01_compiler_error.py
$ torchsleuth show last
your line  01_compiler_error.py:21: return torch.relu(y).mean()
at fault   backend, sleuth_relu_compile_error torch.relu
works      function model eager; paste:
           @torch.compiler.disable
minified   1 call: torch.relu
repro      repro.py; verified: failed the same way in 3 of 3 fresh processes
"""

import torch

net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16))


@torch.compile(backend="sleuth_relu_compile_error")
def model(x):
    y = net(x)
    return torch.relu(y).mean()


model(torch.randn(4, 8))
