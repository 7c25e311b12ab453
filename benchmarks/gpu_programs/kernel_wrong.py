"""A user's kernel with an autotuned block, and a relu beside it that is wrong."""

# check
# right inductor relu
import torch
import torch._inductor.config
import triton
import triton.language as tl

torch._inductor.config.triton.inject_relu_bug_TESTING_ONLY = "accuracy"


@triton.autotune(
    configs=[triton.Config({"BLOCK": b}, num_warps=w) for b, w in ((256, 2), (1024, 4))], key=["n"]
)
@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@torch.compile
def f(x, y):
    out = torch.empty_like(x)
    add[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y.cos(), out, x.numel())
    return torch.relu(out - 0.5) * 2


torch.manual_seed(0)
print(f(torch.randn(5000, device="cuda"), torch.randn(5000, device="cuda")).sum().item())
