"""A small vision transformer that is fine in eager and breaks under torch.compile; nothing about it is planted.

As in transformers for small datasets, attention learns its temperature and looks at other patches only. On torch 2.13
one of Inductor's attention patterns takes the learned temperature for a number that is known when it compiles.
"""

import torch
import torch.nn as nn


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, tokens: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.temperature = nn.Parameter(torch.tensor(width // heads).sqrt())
        self.register_buffer("not_itself", torch.zeros(tokens, tokens).fill_diagonal_(-torch.inf))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4).contiguous()
        scores = q @ k.transpose(-2, -1) / self.temperature + self.not_itself
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, tokens: int):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, tokens)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class VisionTransformer(nn.Module):
    def __init__(self, width: int = 64, depth: int = 2, heads: int = 4, classes: int = 10):
        super().__init__()
        self.patches = nn.Conv2d(3, width, kernel_size=4, stride=4)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, 65, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads, 65) for _ in range(depth)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], dim=1) + self.places
        return self.head(self.blocks(x)[:, 0])


def main() -> None:
    torch.manual_seed(0)
    images = torch.randn(8, 3, 32, 32)
    model = VisionTransformer().eval()
    with torch.no_grad():
        print("eager:   ", model(images).argmax(-1).tolist(), flush=True)
        print("compiled:", torch.compile(model)(images).argmax(-1).tolist())


if __name__ == "__main__":
    main()
