"""A kernel of the program's own that forgets its mask and jumps far out of memory."""

# right program scatter_rows
import torch
import triton
import triton.language as tl


@triton.jit
def scatter_rows(x, index, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    to = tl.load(index + at, mask=at < n, other=0)
    tl.store(out + to, tl.load(x + at, mask=at < n), mask=at < n)


@torch.compile
def f(x, index):
    out = torch.zeros_like(x)
    scatter_rows[(triton.cdiv(x.numel(), 128),)](x, index, out, x.numel(), BLOCK=128)
    return out.cos() + 1


index = torch.randperm(1000, device="cuda")
index[300] = 1 << 40
result = f(torch.randn(1000, device="cuda"), index)
print(result.sum().item())
