"""Dropout from a seed, without a mask in memory; a tanh behind it is wrong."""

# check
# fault aten.tanh.default:wrong
# right inductor tanh
import torch
import triton
import triton.language as tl


@triton.jit
def seeded_dropout(x, out, n, p, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = tl.rand(seed, at) > p
    tl.store(out + at, tl.where(kept, tl.load(x + at, mask=at < n) / (1 - p), 0.0), mask=at < n)


@torch.compile
def f(x, seed: int):
    out = torch.empty_like(x)
    n = x.numel()
    seeded_dropout[(triton.cdiv(n, 512),)](x, out, n, 0.3, seed, BLOCK=512)
    return torch.tanh(out).square().sum()


torch.manual_seed(0)
print(f(torch.randn(3000, device="cuda"), 7).item())
