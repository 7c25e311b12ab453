"""An input is a tensor subclass that wraps two others; a relu is wrong."""

# check
# right inductor relu
import torch
import torch._inductor.config
from torch.testing._internal.two_tensor import TwoTensor

torch._inductor.config.triton.inject_relu_bug_TESTING_ONLY = "accuracy"


@torch.compile
def f(x):
    return torch.relu(x.sin() - 0.3) * 2


torch.manual_seed(0)
a, b = torch.randn(32, 16, device="cuda"), torch.randn(32, 16, device="cuda")
print(f(TwoTensor(a, b)).a.sum().item())
