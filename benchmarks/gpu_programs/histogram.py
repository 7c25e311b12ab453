"""A histogram by atomic additions into a tensor that is given; an exponential is wrong."""

# check
# fault triton.exp:wrong
# right inductor exp
import torch
import triton
import triton.language as tl


@triton.jit
def count(values, bins, n, width, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    which = (tl.load(values + at, mask=at < n, other=0.0) * width).to(tl.int32)
    tl.atomic_add(bins + which, 1.0, mask=at < n)


@torch.compile
def f(x):
    bins = torch.zeros(16, device=x.device)
    count[(triton.cdiv(x.numel(), 256),)](x, bins, x.numel(), 16, BLOCK=256)
    return torch.exp(bins / x.numel())


torch.manual_seed(0)
print(f(torch.rand(3000, device="cuda")).sum().item())
