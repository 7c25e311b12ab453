"""On the CPU of a machine with a GPU: C++ that does not compile."""

# right inductor relu
import torch
import torch._inductor.config

torch._inductor.config.cpp.inject_relu_bug_TESTING_ONLY = "compile_error"


@torch.compile
def f(x):
    return torch.relu(x.sin() - 0.2).sum(-1)


print(f(torch.randn(64, 64)).sum().item())
