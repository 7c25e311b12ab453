"""A kernel registered as an operator with triton_op and wrap_triton, with a gradient; a cosine fails in its lowering."""

# fault aten.cos.default:raise
# right inductor cos
import torch
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton


@triton.jit
def sine(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.sin(tl.load(x + at, mask=at < n)), mask=at < n)


@triton_op("gpu_programs::mysin", mutates_args={})
def mysin(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    wrap_triton(sine)[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
    return out


def backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return grad * x.cos()


mysin.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]))


@torch.compile
def f(x):
    return mysin(x * 2).exp().sum()


x = torch.randn(1000, device="cuda", requires_grad=True)
f(x).backward()
print(x.grad.sum().item())
