"""A U-Net of two levels that upsamples by whole factors."""

import torch
import torch.nn.functional as F
from torch import nn


class UNet(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(a, b, 3, padding=1) for a, b in ((1, c), (c, 2 * c))])
        self.mid = nn.Conv2d(2 * c, 2 * c, 3, padding=1)
        self.up = nn.ModuleList([nn.Conv2d(a, b, 3, padding=1) for a, b in ((4 * c, c), (2 * c, c))])
        self.norm, self.last = nn.GroupNorm(4, c), nn.Conv2d(c, 1, 1)

    def forward(self, x):
        kept = []
        for conv in self.down:
            x = F.silu(conv(x))
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = F.silu(self.mid(x))
        for conv in self.up:
            x = F.interpolate(x, scale_factor=2, mode="nearest")
            x = F.silu(conv(torch.cat([x, kept.pop()], 1)))
        return torch.sigmoid(self.last(self.norm(x)))


torch.manual_seed(0)
with torch.no_grad():
    torch.compile(UNet().eval())(torch.randn(2, 1, 16, 24))
