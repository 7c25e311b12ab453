"""A kernel that checks its indices with tl.device_assert, given one that is wrong."""

# right program gather_checked
import torch
import triton
import triton.language as tl


@triton.jit(debug=True)
def gather_checked(x, index, out, n, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    which = tl.load(index + at, mask=at < n, other=0)
    tl.device_assert((which >= 0) & (which < size), "index outside of the table")
    tl.store(out + at, tl.load(x + which, mask=(at < n) & (which < size)), mask=at < n)


@torch.compile
def f(x, index):
    out = torch.empty(index.shape, device=x.device)
    gather_checked[(triton.cdiv(index.numel(), 128),)](x, index, out, index.numel(), x.numel(), BLOCK=128)
    return out * 2


index = torch.arange(500, device="cuda")
index[130] = 900
result = f(torch.randn(600, device="cuda"), index)
print(result.sum().item())
