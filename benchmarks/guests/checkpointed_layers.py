"""Activation checkpointing inside a compiled model."""

import torch
from torch.utils.checkpoint import checkpoint


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(lambda h, f=layer: torch.relu(f(h)) + h, x, use_reentrant=False)
        return x.sum()


torch.manual_seed(0)
net = Net()
loss = torch.compile(net)(torch.randn(3, 6))
loss.backward()
print(loss.item().hex(), [layer.weight.grad.sum().item().hex() for layer in net.layers])
