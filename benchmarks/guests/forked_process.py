"""A forked child calls what its parent compiled, and compiles more."""

import os
import sys

import torch
import torch._inductor.config

torch.set_num_threads(1)
# The threads that compile are not there after a fork, and torch would wait for them.
torch._inductor.config.compile_threads = 1
f = torch.compile(lambda x: x.sin().sum())
print(f(torch.ones(3)).item().hex(), flush=True)
child = os.fork()
if child == 0:
    print(f(torch.zeros(3)).item(), torch.compile(lambda x: x.cos().sum())(torch.zeros(3)).item(), flush=True)
    sys.exit(6)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
