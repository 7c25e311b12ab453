"""A small GPT-2-like block with flash attention under bfloat16 autocast."""
# gpu

import torch
import torch.nn.functional as F


class Block(torch.nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.norm, self.qkv, self.out = (
            torch.nn.LayerNorm(d),
            torch.nn.Linear(d, 3 * d),
            torch.nn.Linear(d, d),
        )

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 4, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


torch.manual_seed(0)
net = torch.nn.Sequential(Block(), Block()).cuda()
forward = torch.compile(net)
for _ in range(3):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = forward(torch.randn(2, 32, 64, device="cuda")).square().mean()
    loss.backward()
    print(round(loss.item(), 3))
