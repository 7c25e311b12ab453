"""Row softmax as a fused kernel, a wrong sigmoid behind it."""

# check
# fault aten.sigmoid.default:wrong
# right inductor sigmoid
import torch
import triton
import triton.language as tl


@triton.jit
def softmax_rows(source, target, stride, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(source + row * stride + at, mask=at < columns, other=-float("inf"))
    raised = tl.exp(values - tl.max(values, axis=0))
    tl.store(target + row * stride + at, raised / tl.sum(raised, axis=0), mask=at < columns)


def softmax(x):
    y = torch.empty_like(x)
    softmax_rows[(x.shape[0],)](x, y, x.stride(0), x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y


@torch.compile
def f(x):
    return torch.sigmoid(softmax(x * 2) + 0.1).mean(-1)


torch.manual_seed(0)
print(f(torch.randn(64, 100, device="cuda")).sum().item())
