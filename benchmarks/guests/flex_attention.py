"""Attention with a causal block mask."""

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

torch.manual_seed(0)
mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 32, 32, device="cpu")
q, k, v = (torch.randn(1, 2, 32, 16) for _ in range(3))
with torch.no_grad():
    out = torch.compile(flex_attention)(q, k, v, block_mask=mask)
print(tuple(out.shape), out[0, 0, 0].sum().item().hex())
