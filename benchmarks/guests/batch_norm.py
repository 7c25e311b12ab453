"""Running statistics change in training and are used in evaluation."""

import torch

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
forward = torch.compile(lambda x: net(x).sum())
x = torch.randn(2, 3, 6, 6)
for _ in range(2):
    forward(x).backward()
    print(net[1].running_mean.sum().item().hex(), int(net[1].num_batches_tracked))
net.eval()
with torch.no_grad():
    print(forward(x).item().hex(), int(net[1].num_batches_tracked))
