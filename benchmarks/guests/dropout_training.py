"""Dropout draws random numbers inside compiled code."""
# random

import torch

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
step = torch.compile(lambda x: net(x).sum())
for _ in range(3):
    loss = step(torch.ones(4, 8))
    loss.backward()
    print(loss.item().hex())
print(torch.rand(1).item().hex())
