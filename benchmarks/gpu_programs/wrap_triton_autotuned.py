"""An autotuned kernel inside of an operator; what follows it is wrong."""

# check
# right inductor relu
import torch
import torch._inductor.config
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton

torch._inductor.config.triton.inject_relu_bug_TESTING_ONLY = "accuracy"


@triton.autotune(configs=[triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 512})], key=["n"])
@triton.jit
def scale(x, out, n, by, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, by * tl.load(x + at, mask=at < n), mask=at < n)


@triton_op("gpu_programs::scaled", mutates_args={})
def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
    out = torch.empty_like(x)
    wrap_triton(scale)[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel(), by)
    return out


@torch.compile
def f(x):
    return torch.relu(scaled(x, 3.0) - 1).sqrt().sum(0)


torch.manual_seed(0)
print(f(torch.rand(64, 64, device="cuda")).sum().item())
