"""Fused causal attention with an online softmax; the projection behind it has a silu that does not compile."""

# fault aten.sigmoid.default:raise
# right inductor sigmoid
import torch
import triton
import triton.language as tl


@triton.jit
def step(total, left, most, q, k, v, rows, columns, scale):
    scores = tl.dot(q, tl.trans(k)) * scale
    scores = tl.where(rows[:, None] >= columns[None, :], scores, -1.0e6)
    now = tl.maximum(most, tl.max(scores, 1))
    p = tl.exp(scores - now[:, None])
    shrunk = tl.exp(most - now)
    return tl.dot(p.to(v.dtype), v, total * shrunk[:, None]), left * shrunk + tl.sum(p, 1), now


@triton.jit
def attend(q, k, v, out, length, scale, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    head = tl.program_id(1) * length * D
    rows, inner = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, D)
    mine = tl.load(q + head + rows[:, None] * D + inner[None, :], mask=rows[:, None] < length, other=0.0)
    most = tl.full((M,), -float("inf"), dtype=tl.float32)
    left, total = tl.zeros((M,), dtype=tl.float32), tl.zeros((M, D), dtype=tl.float32)
    for start in range(0, length, N):
        columns = start + tl.arange(0, N)
        at = head + columns[:, None] * D + inner[None, :]
        keys = tl.load(k + at, mask=columns[:, None] < length, other=0.0)
        values = tl.load(v + at, mask=columns[:, None] < length, other=0.0)
        total, left, most = step(total, left, most, mine, keys, values, rows, columns, scale)
    tl.store(
        out + head + rows[:, None] * D + inner[None, :],
        (total / left[:, None]).to(mine.dtype),
        mask=rows[:, None] < length,
    )


def attention(q, k, v):
    out = torch.empty_like(q)
    batch, heads, length, width = q.shape
    attend[(triton.cdiv(length, 32), batch * heads)](q, k, v, out, length, width**-0.5, D=width, M=32, N=32)
    return out


@torch.compile
def f(q, k, v, w):
    return torch.nn.functional.silu(attention(q, k, v).transpose(1, 2).flatten(2) @ w)


torch.manual_seed(0)
q, k, v = (torch.randn(2, 4, 100, 32, device="cuda", dtype=torch.float16) for _ in range(3))
print(f(q, k, v, torch.randn(128, 64, device="cuda", dtype=torch.float16)).float().sum().item())
