"""A training step of a residual network whose shortcuts pool without overhang."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, 2, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(after) for _ in range(3)])
        self.short = nn.Conv2d(before, after, 1, bias=False)

    def forward(self, x):
        y = F.relu(self.norms[0](self.first(x)))
        y = self.norms[1](self.second(y))
        return F.relu(y + self.norms[2](self.short(F.avg_pool2d(x, 2, 2))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(3, 8), Block(8, 16))
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.blocks(x).mean((2, 3)))


torch.manual_seed(0)
model = Net().train()
compiled, optimizer = torch.compile(model), torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    optimizer.zero_grad()
    F.cross_entropy(compiled(torch.randn(4, 3, 16, 16)), torch.randint(0, 10, (4,))).backward()
    optimizer.step()
