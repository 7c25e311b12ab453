"""Attention with as many heads as places, the keys transposed in the usual way."""

import torch


def attend(q, k, v):
    scores = torch.matmul(q, k.transpose(-2, -1)).mul(1 / 8**0.5)
    return scores.softmax(dim=-1).matmul(v)


torch.manual_seed(0)
with torch.no_grad():
    torch.compile(attend)(*(torch.randn(2, 8, 8, 8) for _ in range(3)))
