"""Layer norm as kernels with a backward of their own, in a module; a gelu's erf has no lowering."""

# fault aten.erf.default:raise
# right inductor erf
import torch
import triton
import triton.language as tl


@triton.jit
def norm_forward(x, weight, out, mean, scale, n, EPS: tl.constexpr, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * n + at, mask=at < n, other=0.0)
    middle = tl.sum(values, axis=0) / n
    apart = tl.where(at < n, values - middle, 0.0)
    r = 1 / tl.sqrt(tl.sum(apart * apart, axis=0) / n + EPS)
    tl.store(out + row * n + at, apart * r * tl.load(weight + at, mask=at < n), mask=at < n)
    tl.store(mean + row, middle)
    tl.store(scale + row, r)


@triton.jit
def norm_backward(grad, x, weight, mean, scale, out, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < n
    r = tl.load(scale + row)
    hat = tl.where(inside, (tl.load(x + row * n + at, mask=inside) - tl.load(mean + row)) * r, 0.0)
    wg = tl.load(weight + at, mask=inside, other=0.0) * tl.load(grad + row * n + at, mask=inside, other=0.0)
    back = wg - tl.sum(wg, axis=0) / n - hat * tl.sum(hat * wg, axis=0) / n
    tl.store(out + row * n + at, back * r, mask=inside)


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        rows, n = x.shape
        out, mean, scale = torch.empty_like(x), x.new_empty(rows), x.new_empty(rows)
        norm_forward[(rows,)](x, weight, out, mean, scale, n, EPS=1e-5, BLOCK=triton.next_power_of_2(n))
        ctx.save_for_backward(x, weight, mean, scale)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, weight, mean, scale = ctx.saved_tensors
        rows, n = x.shape
        out = torch.empty_like(x)
        norm_backward[(rows,)](
            grad.contiguous(), x, weight, mean, scale, out, n, BLOCK=triton.next_power_of_2(n)
        )
        return out, (grad * (x - mean[:, None]) * scale[:, None]).sum(0)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(96))
        self.linear = torch.nn.Linear(96, 96)

    def forward(self, x):
        return torch.nn.functional.gelu(self.linear(Norm.apply(x, self.weight)))


torch.manual_seed(0)
net = torch.compile(Net().cuda())
net(torch.randn(32, 96, device="cuda")).sum().backward()
print("done")
