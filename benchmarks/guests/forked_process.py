"""A forked child calls what its parent compiled, and compiles more."""

import os
import sys

import torch

torch.set_num_threads(1)
f = torch.compile(lambda x: x.sin().sum())
print(f(torch.ones(3)).item().hex(), flush=True)
child = os.fork()
if child == 0:
    print(f(torch.zeros(3)).item(), torch.compile(lambda x: x.cos().sum())(torch.zeros(3)).item(), flush=True)
    sys.exit(6)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
