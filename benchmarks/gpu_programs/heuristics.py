"""A kernel with heuristics, a helper and a global constant; wrong numbers of an expression beside it."""

# check
# right inductor relu
import torch
import torch._inductor.config
import triton
import triton.language as tl

torch._inductor.config.triton.inject_relu_bug_TESTING_ONLY = "accuracy"
HALF = tl.constexpr(0.5)
LARGEST = 1024


@triton.jit
def bent(x):
    return x * x * HALF


@triton.heuristics(
    {
        "BLOCK": lambda given: min(LARGEST, triton.next_power_of_2(given["n"])),
        "EVEN": lambda g: g["n"] % 8 == 0,
    }
)
@triton.jit
def energy(x, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < n, other=0.0)
    tl.store(out + at, bent(values) if EVEN else values, mask=at < n)


@torch.compile
def f(x):
    out = torch.empty_like(x)
    energy[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
    return torch.relu(out - 0.25).sum()


torch.manual_seed(0)
print(f(torch.randn(4096, device="cuda")).item())
