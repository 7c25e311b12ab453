"""The program ends with a status of its own, having said something on both streams."""
# status 7

import atexit
import sys

import torch

atexit.register(print, "bye")
print(torch.compile(lambda x: x.sin() + 1)(torch.zeros(2)).tolist())
print("to stderr", file=sys.stderr)
sys.exit(7)
