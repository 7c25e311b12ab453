"""A user's kernel in the graph, and an operator beside it whose Triton code does not compile."""

# right inductor relu
import torch
import torch._inductor.config
import triton
import triton.language as tl

torch._inductor.config.triton.inject_relu_bug_TESTING_ONLY = "compile_error"


@triton.jit
def axpy(x, y, out, a, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, a * tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@torch.compile
def f(x, y):
    out = torch.empty_like(x)
    axpy[(triton.cdiv(x.numel(), 256),)](x, y, out, 2.0, x.numel(), BLOCK=256)
    return torch.relu(out.sin() + 1) * 3


print(f(torch.randn(5000, device="cuda"), torch.randn(5000, device="cuda")).sum().item())
