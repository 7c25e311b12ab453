"""Flex attention with a soft cap; the relu behind it is wrong, not the template."""

# check
# right inductor relu
import torch
import torch._inductor.config
from torch.nn.attention.flex_attention import flex_attention

torch._inductor.config.triton.inject_relu_bug_TESTING_ONLY = "accuracy"


def soft_cap(score, b, h, q, k):
    return 20 * torch.tanh(score / 20)


@torch.compile
def f(q, k, v):
    return torch.relu(flex_attention(q, k, v, score_mod=soft_cap) - 0.01)


torch.manual_seed(0)
q, k, v = (torch.randn(1, 2, 128, 64, device="cuda") for _ in range(3))
with torch.no_grad():
    print(f(q, k, v).sum().item())
