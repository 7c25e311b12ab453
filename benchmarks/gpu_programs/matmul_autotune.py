"""A tiled matrix product, autotuned over tiles with an activation as a constant; a relu behind it is wrong."""

# check
# right inductor relu
import torch
import torch._inductor.config
import triton
import triton.language as tl

torch._inductor.config.triton.inject_relu_bug_TESTING_ONLY = "accuracy"
TILES = [(64, 64, 32, 4), (128, 64, 32, 4), (64, 32, 64, 2)]


def tiles():
    return [triton.Config({"M_": m, "N_": n, "K_": k}, num_warps=w, num_stages=2) for m, n, k, w in TILES]


@triton.jit
def leaky(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.autotune(configs=tiles(), key=["m", "n", "k"])
@triton.jit
def product(
    a,
    b,
    c,
    m,
    n,
    k,
    am,
    ak,
    bk,
    bn,
    cm,
    cn,
    M_: tl.constexpr,
    N_: tl.constexpr,
    K_: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    rows = tl.program_id(0) * M_ + tl.arange(0, M_)
    columns = tl.program_id(1) * N_ + tl.arange(0, N_)
    inner = tl.arange(0, K_)
    total = tl.zeros((M_, N_), dtype=tl.float32)
    for start in range(0, k, K_):
        left = tl.load(
            a + rows[:, None] * am + (start + inner)[None, :] * ak,
            mask=(rows[:, None] < m) & (start + inner < k)[None, :],
            other=0.0,
        )
        right = tl.load(
            b + (start + inner)[:, None] * bk + columns[None, :] * bn,
            mask=(start + inner < k)[:, None] & (columns[None, :] < n),
            other=0.0,
        )
        total = tl.dot(left, right, total)
    if ACTIVATION == "leaky":
        total = leaky(total)
    tl.store(
        c + rows[:, None] * cm + columns[None, :] * cn,
        total.to(tl.float16),
        mask=(rows[:, None] < m) & (columns[None, :] < n),
    )


def matmul(a, b):
    c = torch.empty((a.shape[0], b.shape[1]), device=a.device, dtype=a.dtype)

    def grid(meta):
        return triton.cdiv(a.shape[0], meta["M_"]), triton.cdiv(b.shape[1], meta["N_"])

    product[grid](
        a, b, c, a.shape[0], b.shape[1], a.shape[1], *a.stride(), *b.stride(), *c.stride(), ACTIVATION="leaky"
    )
    return c


@torch.compile
def f(a, b):
    return torch.relu(matmul(a, b) * 0.5 - 1).float().mean(0)


torch.manual_seed(0)
print(f(torch.randn(200, 128, device="cuda").half(), torch.randn(128, 96, device="cuda").half()).sum().item())
