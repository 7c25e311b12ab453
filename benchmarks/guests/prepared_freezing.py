"""Weights are put into the graph as for freezing, and trained all the same."""

import torch

torch._dynamo.config.prepare_freezing = True
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Tanh())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
step = torch.compile(lambda x: net(x).square().sum())
for i in range(4):
    loss = step(torch.arange(8.0).reshape(2, 4) * (i + 1) ** 2 % 3)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item().hex(), net[1].running_mean.sum().item().hex())
