"""Convolutions in channels-last memory under bfloat16, forward and backward."""
# gpu

import torch

torch.manual_seed(0)
net = torch.nn.Sequential(
    torch.nn.Conv2d(3, 16, 3, padding=1),
    torch.nn.BatchNorm2d(16),
    torch.nn.ReLU(),
    torch.nn.AdaptiveAvgPool2d(1),
)
net = net.cuda().to(memory_format=torch.channels_last)
forward = torch.compile(net)
x = torch.randn(4, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
torch.use_deterministic_algorithms(True, warn_only=False)
for _ in range(3):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = forward(x).float().square().sum()
    loss.backward()
    print(round(loss.item(), 2), net[1].running_mean.dtype)
