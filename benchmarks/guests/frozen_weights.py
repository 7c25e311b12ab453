"""Inference with frozen weights and constant folding."""

import torch

torch._inductor.config.freezing = True
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()).eval()
forward = torch.compile(net.forward)
with torch.no_grad():
    for _ in range(2):
        print(forward(torch.ones(1, 3, 5, 5)).sum().item().hex())
