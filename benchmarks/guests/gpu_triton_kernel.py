"""A Triton kernel of the program's own inside compiled code."""
# gpu

import torch
import triton
import triton.language as tl


@triton.jit
def add_one(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(x + offsets, mask=offsets < n) + 1, mask=offsets < n)


@torch.compile(fullgraph=True)
def f(x):
    out = torch.empty_like(x)
    add_one[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), BLOCK=128)
    return out.sin().sum()


print(f(torch.ones(300, device="cuda")).item().hex())
