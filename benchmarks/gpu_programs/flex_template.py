"""Flex attention whose score function holds a wrong tanh: inside of the template."""

# check
# fault triton.tanh:wrong
# right inductor flex_attention
import torch
from torch.nn.attention.flex_attention import flex_attention


def soft_cap(score, b, h, q, k):
    return score * torch.tanh(score / 20)


@torch.compile
def f(q, k, v):
    return flex_attention(q, k, v, score_mod=soft_cap) * 2


torch.manual_seed(0)
q, k, v = (torch.randn(1, 2, 128, 64, device="cuda") for _ in range(3))
with torch.no_grad():
    print(f(q, k, v).sum().item())
