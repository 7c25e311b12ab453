"""The program asks whether it is compiled, switches compiling off and on, and counts compiles."""

import torch
from torch._dynamo.testing import CompileCounter

counter = CompileCounter()


@torch.compile(backend=counter)
def f(x):
    return x + (2 if torch.compiler.is_compiling() else 1)


@torch.compiler.disable
def untouched(x):
    return x * 3


print(f(torch.zeros(2)).tolist(), untouched(torch.ones(1)).item())
with torch.compiler.set_stance("force_eager"):
    print(f(torch.zeros(3)).tolist())
print(f(torch.zeros(3)).tolist(), counter.frame_count, counter.op_count)
torch.compiler.reset()
print(torch.compile(lambda x: untouched(x + 1) + 1)(torch.zeros(2)).tolist())
