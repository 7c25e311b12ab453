"""The program looks at its arguments, its folder, its standard input and its own module."""

import os
import sys

import torch

print(sys.argv[1:], os.listdir("."), sys.stdin.read(), __name__, os.path.basename(__file__))
print(torch.compile(lambda x: x + 1)(torch.ones(1)).item())
