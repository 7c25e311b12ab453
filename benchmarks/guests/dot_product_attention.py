"""Scaled dot-product attention, written out by hand and by torch, forward and backward."""

import math

import torch
import torch.nn.functional as F

torch.manual_seed(0)
q, k, v = (torch.randn(2, 2, 6, 8, requires_grad=True) for _ in range(3))


@torch.compile
def both(q, k, v):
    by_hand = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(8), -1) @ v
    return by_hand, F.scaled_dot_product_attention(q, k, v, is_causal=True)


first, second = both(q, k, v)
(first.sum() + second.square().sum()).backward()
print(first.sum().item().hex(), second.sum().item().hex(), q.grad.sum().item().hex())
