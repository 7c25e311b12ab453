"""Healthy by construction: small random models as people write them, trained or run for two steps under torch.compile.

    python benchmarks/healthy_models.py 100:110                      # seeds, float32, on the CPU
    python benchmarks/healthy_models.py 100:110 --precision bf16 --device cuda

Nothing here is wrong, so under `torchsleuth run --check-accuracy` no case may appear; `benchmarks/healthy.py` counts.
A model is a pure function of its seed: its kind, sizes, layers and inputs. Precisions are those people train in: fp32,
tf32 (GPU), bf16 and fp16 as autocast (fp16 with a GradScaler on a GPU), and `half`, a model whose weights are bfloat16.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

CURRENT = ""
"""The model that runs now, for whoever watches this process."""

Loss = Callable[[Any], torch.Tensor]


@dataclass
class Subject:
    """A model, the inputs of each step, the loss of what it returns, and how it is compiled and trained."""

    model: nn.Module
    steps: list[tuple[Any, ...]]
    loss: Loss = lambda out: out.float().square().mean()
    trains: bool = True
    options: dict[str, Any] = field(default_factory=dict)


def activation(r: random.Random) -> nn.Module:
    """Smooth ones and those with a corner alike."""
    kinds = [nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.CELU, nn.SELU, nn.Mish, nn.Hardswish]
    kinds += [
        nn.Hardsigmoid,
        nn.Hardtanh,
        nn.ReLU6,
        nn.Softplus,
        nn.LeakyReLU,
        nn.PReLU,
        nn.Softshrink,
        nn.Hardshrink,
    ]
    kinds += [nn.Tanhshrink, nn.Softsign, nn.LogSigmoid]
    return r.choice(kinds)()


class Convolutions(nn.Module):
    """A convolutional net with norms, pooling, dropout, sometimes grouped, dilated, transposed or channels last."""

    def __init__(self, r: random.Random) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = 3
        for _ in range(r.randint(1, 2)):
            out = r.choice([8, 16])
            norms = [
                nn.BatchNorm2d(out),
                nn.BatchNorm2d(out, momentum=0.3),
                nn.GroupNorm(4, out),
                nn.GroupNorm(1, out),
            ]
            norms += [nn.InstanceNorm2d(out, affine=True), nn.LocalResponseNorm(3), nn.Identity()]
            norm = r.choice(norms)
            kind = r.random()
            if kind < 0.15:
                layers.append(nn.ConvTranspose2d(width, out, 2, stride=2))
            else:
                groups = width if width > 3 and out % width == 0 and r.random() < 0.3 else 1
                layers.append(
                    nn.Conv2d(
                        width, out, r.choice([1, 3]), padding=1, stride=r.choice([1, 1, 2]), groups=groups
                    )
                )
            layers += [norm, activation(r), nn.Dropout(r.choice([0.0, 0.1]))]
            if r.random() < 0.5:
                layers.append(
                    r.choice(
                        [
                            nn.MaxPool2d(2),
                            nn.AvgPool2d(2),
                            nn.AdaptiveAvgPool2d(3),
                            nn.LPPool2d(2, 2),
                            nn.AdaptiveMaxPool2d(2),
                        ]
                    )
                )
            width = out
        self.body, self.head = nn.Sequential(*layers), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean((2, 3)))


def convolutions(r: random.Random, make: Make) -> Subject:
    last = torch.channels_last if r.random() < 0.5 else torch.contiguous_format
    model = Convolutions(r).to(memory_format=last)
    shift = r.choice([0.0, 0.0, 3.0])
    steps = [((make(8, 3, 12, 12) + shift).contiguous(memory_format=last),) for _ in range(2)]
    return Subject(model, steps)


class Transformer(nn.Module):
    """Blocks of attention written in one of the usual ways, and a head over tokens."""

    def __init__(self, r: random.Random) -> None:
        super().__init__()
        self.width, self.heads = r.choice([(32, 4), (48, 2)])
        self.way = r.choice(["layer", "fused", "plain", "cosine"])
        self.causal, self.first = r.random() < 0.5, r.random() < 0.5
        self.embed = nn.Embedding(50, self.width)
        drop, width = r.choice([0.0, 0.1]), self.width
        norm = r.choice([nn.LayerNorm, nn.RMSNorm])
        if self.way == "layer":
            self.layer = nn.TransformerEncoderLayer(
                width,
                self.heads,
                2 * width,
                drop,
                r.choice(["relu", "gelu"]),
                batch_first=True,
                norm_first=self.first,
            )
        else:
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(
                nn.Linear(width, 2 * width), activation(r), nn.Dropout(drop), nn.Linear(2 * width, width)
            )
            self.norms = nn.ModuleList([norm(width), norm(width)])
        self.head = nn.Linear(width, 50)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        b, t, w = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        if self.way == "fused":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            if self.way == "cosine":
                q, k = F.normalize(q, dim=-1) * 4, F.normalize(k, dim=-1)
            scores = q @ k.transpose(-1, -2) / math.sqrt(w // self.heads)
            if self.causal:
                scores = scores.masked_fill(
                    torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1), -math.inf
                )
            y = scores.softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, w))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        if self.way == "layer":
            x = self.layer(x)
        elif self.first:
            x = x + self.attention(self.norms[0](x))
            x = x + self.mlp(self.norms[1](x))
        else:
            x = self.norms[0](x + self.attention(x))
            x = self.norms[1](x + self.mlp(x))
        return self.head(x)


def transformer(r: random.Random, make: Make) -> Subject:
    model = Transformer(r)
    steps = [(make.integers(50, 4, 10),) for _ in range(2)]
    target = make.integers(50, 40)
    if r.random() < 0.5:
        return Subject(
            model, steps, lambda out: F.cross_entropy(out.float().view(40, 50), target, label_smoothing=0.1)
        )
    return Subject(model, steps, lambda out: F.log_softmax(out, -1).float().square().mean())


class Perceptron(nn.Module):
    """Linear layers with norms, residual, gated or plain."""

    def __init__(self, r: random.Random) -> None:
        super().__init__()
        width = self.width = r.choice([16, 48, 96])
        norms = [
            nn.LayerNorm(width),
            nn.BatchNorm1d(width),
            nn.RMSNorm(width),
            nn.Identity(),
            nn.LayerNorm(width, elementwise_affine=False),
        ]
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, width), r.choice(norms), activation(r), nn.Dropout(r.choice([0.0, 0.1]))
            )
            for _ in range(r.randint(1, 4))
        )
        if r.random() < 0.2:
            torch.nn.utils.parametrizations.weight_norm(self.blocks[0][0])
        self.way = r.choice(["residual", "gated", "plain", "glu"])
        self.end = r.choice(["logsumexp", "std", "norm", "cosine", "mean"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = x
        for block in self.blocks:
            y = block(x)
            if self.way == "residual":
                x = x + y
            elif self.way == "gated":
                x = x * torch.sigmoid(y)
            elif self.way == "glu":
                x = torch.cat([F.glu(y, -1), x[..., : self.width // 2]], -1)
            else:
                x = y
        if self.end == "logsumexp":
            return x.logsumexp(-1)
        if self.end == "std":
            return x.std(-1) + x.var(-1, correction=0)
        if self.end == "norm":
            return x.norm(dim=-1)
        return F.cosine_similarity(x, first, dim=-1) if self.end == "cosine" else x.mean(-1)


def perceptron(r: random.Random, make: Make) -> Subject:
    model = Perceptron(r)
    scale = r.choice([1.0, 1.0, 0.01, 10.0])
    return Subject(model, [(make(32, model.width) * scale,) for _ in range(2)])


class Recurrent(nn.Module):
    """A cell in a loop over a short sequence."""

    def __init__(self, r: random.Random) -> None:
        super().__init__()
        self.cell = r.choice([nn.GRUCell, nn.LSTMCell, nn.RNNCell])(12, 20)
        self.head = nn.Linear(20, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.new_zeros(x.shape[0], 20)
        c = torch.zeros_like(h)
        for step in range(x.shape[1]):
            if isinstance(self.cell, nn.LSTMCell):
                h, c = self.cell(x[:, step], (h, c))
            else:
                h = self.cell(x[:, step], h)
        return self.head(h).softmax(-1)


def recurrent(r: random.Random, make: Make) -> Subject:
    return Subject(Recurrent(r), [(make(6, 4, 12),) for _ in range(2)])


Formula = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

FORMULAS: list[Formula] = [
    lambda y, x: F.normalize(y, dim=-1) @ F.normalize(x, dim=-1).T,
    lambda y, x: torch.cumsum(F.softplus(y), -1).log(),
    lambda y, x: torch.logcumsumexp(y, -1) - torch.cumprod(torch.sigmoid(x) + 0.5, -1),
    lambda y, x: torch.cdist(y, x).exp().reciprocal().sum(-1),
    lambda y, x: torch.einsum("ij,kj->ik", y, x).softmax(-1).var(-1),
    lambda y, x: torch.einsum("bi,bj,ij->b", y, x, y.T @ x / 16),
    lambda y, x: F.pad(y, (1, 2)).unfold(-1, 3, 1).amax(-1).erf(),
    lambda y, x: torch.fft.rfft(y, dim=-1).abs() + torch.fft.rfft(x, dim=-1).abs(),
    lambda y, x: torch.fft.irfft(torch.fft.rfft(y, dim=-1) * torch.fft.rfft(x, dim=-1), n=24, dim=-1),
    lambda y, x: torch.where(y > x, y.exp().clamp(max=3.0), x.sin()),
    lambda y, x: (y.sort(-1).values * x).sum(-1) + y.topk(3, -1).values.mean(-1),
    lambda y, x: torch.gather(y, 1, x.argsort(-1)).tanh(),
    lambda y, x: y.new_zeros(16, 24).scatter_add(1, x.argsort(-1), y).sigmoid(),
    lambda y, x: y.new_zeros(8, 24).index_add(0, torch.arange(16, device=y.device) % 8, y) + x[:8],
    # In float32: under autocast on a GPU, compiled code of torch 2.11 gives another dtype than eager, which is a bug.
    lambda y, x: F.interpolate(y.float().view(1, 16, 4, 6), scale_factor=2.0, mode="bilinear") * x.mean(),
    lambda y, x: y.clamp(-0.5, 0.5) + torch.maximum(x, y) * torch.minimum(x, y),
    lambda y, x: (y / (x.abs().amax(-1, keepdim=True) + 0.5)).round(decimals=1) + y.floor() * x.frac(),
    lambda y, x: torch.linalg.vector_norm(y, ord=3, dim=-1) + torch.linalg.vector_norm(x, ord=1, dim=-1),
    lambda y, x: torch.atan2(y, x.abs() + 0.1) + torch.hypot(x, y),
    lambda y, x: torch.addcmul(y, x, y, value=0.5).lerp(x, 0.3),
    lambda y, x: F.smooth_l1_loss(y, x, reduction="none") + F.huber_loss(y, x, delta=0.5, reduction="none"),
    lambda y, x: F.binary_cross_entropy_with_logits(y, x.sigmoid(), reduction="none"),
    lambda y, x: F.kl_div(y.log_softmax(-1), x.softmax(-1), reduction="none").sum(-1),
    lambda y, x: F.gaussian_nll_loss(y, x, x.square() + 0.1, reduction="none"),
    lambda y, x: F.triplet_margin_loss(y, x, x.roll(1, 0), reduction="none"),
    lambda y, x: torch.special.erfinv(y.tanh() * 0.9) + torch.special.expit(x),
    lambda y, x: (
        y.median(-1).values + x.quantile(0.3, dim=-1) if x.dtype == torch.float32 else y.median(-1).values
    ),
    lambda y, x: y.unfold(1, 4, 2).max(-1).values @ x[:11, :16],
    lambda y, x: torch.stack([y, x], -1).flatten(1).view(16, 8, 6).transpose(1, 2).amin(-1),
    # Ill-conditioned, and right: tails, variances of next to nothing, norms near zero, what cancels.
    lambda y, x: (y * 40).log_softmax(-1),
    lambda y, x: (y * 1e-4 + 5.0).var(-1) * 1e6,
    lambda y, x: F.layer_norm(y * 1e-3 + 1.0, (24,)),
    lambda y, x: F.normalize(y * 1e-5, dim=-1),
    lambda y, x: (y * 1e-6).norm(dim=-1) / (x * 1e-6).norm(dim=-1).clamp_min(1e-8),
    lambda y, x: (y + 100.0).sum(-1) - 2400.0 - y.sum(-1),
    lambda y, x: torch.logsumexp(y * 50, -1) - (y * 50).max(-1).values,
    lambda y, x: (1 + y * 1e-3).log() - torch.log1p(y * 1e-3) + y.expm1(),
    lambda y, x: y.softmax(-1).clamp_min(1e-9).log().mul(y.softmax(-1)).sum(-1),
    lambda y, x: (y - y.mean(0)) / (y.std(0) + 1e-5) * x,
]
"""Steps on two matrices of 16 by 24."""


class Odd(nn.Module):
    """One product, then one or two formulas that no layer stands for."""

    def __init__(self, r: random.Random) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(24, 24) / 5)
        self.chosen = r.sample(FORMULAS, r.choice([1, 2]))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x @ self.weight
        return tuple(formula(y, x.to(y.dtype)) for formula in self.chosen)


def _all_squares(out: Any) -> torch.Tensor:
    return sum((o.float().square().mean() for o in out), torch.zeros((), device=out[0].device))


def odd(r: random.Random, make: Make) -> Subject:
    return Subject(Odd(r), [(make(16, 24),) for _ in range(2)], _all_squares)


class Bags(nn.Module):
    """Embeddings summed, scattered and looked up, as recommenders do."""

    def __init__(self, r: random.Random) -> None:
        super().__init__()
        self.way = r.choice(["bag", "mean", "scatter", "padded"])
        self.table = nn.Embedding(40, 16, padding_idx=0 if self.way == "padded" else None)
        self.bag = nn.EmbeddingBag(40, 16, mode=r.choice(["sum", "mean"]))
        self.tower = nn.Sequential(nn.Linear(16, 32), activation(r), nn.Linear(32, 16))

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        if self.way == "bag":
            user = self.bag(items)
        elif self.way == "scatter":
            found = self.table(items)
            user = found.new_zeros(items.shape[0], 16).index_add(
                0,
                torch.arange(items.shape[0], device=items.device).repeat_interleave(items.shape[1]),
                found.flatten(0, 1),
            )
        else:
            user = self.table(items).mean(1)
        return self.tower(user) @ self.table.weight.T


def bags(r: random.Random, make: Make) -> Subject:
    target = make.integers(40, 16)
    steps = [(make.integers(40, 16, 6),) for _ in range(2)]
    return Subject(Bags(r), steps, lambda out: F.cross_entropy(out.float(), target))


def dynamic(r: random.Random, make: Make) -> Subject:
    """Another batch size in the second step, compiled for any."""
    model = Perceptron(r)
    steps = [(make(size, model.width),) for size in (24, 17)]
    return Subject(model, steps, options={"dynamic": True})


def inference(r: random.Random, make: Make) -> Subject:
    """In evaluation mode, without gradients."""
    found = r.choice([convolutions, transformer, perceptron, odd])(r, make)
    found.trains = False
    found.model.eval()
    return found


class Flexible(nn.Module):
    """Flex attention with a score and a block mask, where it trains: on a GPU."""

    def __init__(self, r: random.Random) -> None:
        super().__init__()
        self.qkv = nn.Linear(64, 192)
        self.slope = r.choice([0.0, 0.1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        b, t, w = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 2, w // 2).permute(2, 0, 3, 1, 4)
        causal = create_block_mask(lambda b, h, q, k: q >= k, None, None, t, t, device=str(x.device))
        y = flex_attention(
            q, k, v, score_mod=lambda s, b, h, q, k: s - self.slope * (q - k), block_mask=causal
        )
        return y.transpose(1, 2).reshape(b, t, w)


def flexible(r: random.Random, make: Make) -> Subject:
    return Subject(Flexible(r), [(make(2, 128, 64),) for _ in range(2)])


KINDS = [
    convolutions,
    convolutions,
    transformer,
    transformer,
    perceptron,
    perceptron,
    recurrent,
    odd,
    odd,
    odd,
    bags,
    dynamic,
    inference,
]


class Make:
    """Inputs of a device, from a generator of their own."""

    def __init__(self, seed: int, device: str) -> None:
        self.generator, self.device = torch.Generator().manual_seed(seed), device

    def __call__(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator).to(self.device)

    def integers(self, top: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, top, shape, generator=self.generator).to(self.device)


def subject(seed: int, device: str) -> tuple[str, Subject]:
    """The model of a seed, and its kind."""
    r = random.Random(seed)
    torch.manual_seed(seed)
    kind = r.choice(KINDS if device == "cpu" else [*KINDS, flexible])
    found = kind(r, Make(seed, device))
    found.model.to(device)
    if device == "cuda" and found.options == {}:
        found.options = r.choice(
            [{}, {}, {}, {"mode": "max-autotune-no-cudagraphs"}, {"mode": "reduce-overhead"}]
        )
    return kind.__name__, found


def run(found: Subject, precision: str, device: str, r: random.Random) -> Iterator[torch.Tensor]:
    """The steps of a model, compiled; gives each step's loss."""
    model = found.model
    if precision == "half":
        model.to(torch.bfloat16)
        found.steps = [
            tuple(x.bfloat16() if x.is_floating_point() else x for x in step) for step in found.steps
        ]
    shorter = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    optimizer = r.choice([torch.optim.SGD, torch.optim.AdamW])(model.parameters(), lr=1e-2)
    step = torch.compile(optimizer.step) if r.random() < 0.05 else optimizer.step
    scaler = torch.amp.GradScaler(device, enabled=precision == "fp16" and device == "cuda")
    compiled = torch.compile(model, **found.options)
    for inputs in found.steps:
        with (
            torch.autocast(device, dtype=shorter, enabled=shorter is not None),
            torch.set_grad_enabled(found.trains),
        ):
            loss = found.loss(compiled(*inputs))
        if found.trains:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer) if scaler.is_enabled() else step()
            scaler.update()
            optimizer.zero_grad()
        yield loss.detach()


def main() -> None:
    global CURRENT
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("seeds", help="first:last")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "tf32", "bf16", "fp16", "half"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--without", default="", help="kinds that are left out")
    given = parser.parse_args()
    for seed in range(*map(int, given.seeds.split(":"))):
        torch._dynamo.reset()
        kind, found = subject(seed, given.device)
        if kind in given.without.split(","):
            continue
        CURRENT = f"{seed} {kind} {given.precision}"
        try:
            losses = [float(loss) for loss in run(found, given.precision, given.device, random.Random(seed))]
        except Exception as error:  # what does not run in this precision is no healthy model of it
            print(f"VOID {CURRENT}: {type(error).__name__}: {str(error).splitlines()[0][:100]}", flush=True)
            continue
        print(f"MODEL {CURRENT}: {losses}", flush=True)


if __name__ == "__main__":
    main()
