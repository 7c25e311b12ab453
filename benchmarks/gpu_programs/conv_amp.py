"""Convolutions in channels last under float16 autocast; a relu is wrong."""

# check
# right inductor relu
import torch
import torch._inductor.config
from torch import nn

torch._inductor.config.triton.inject_relu_bug_TESTING_ONLY = "accuracy"
torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(32, 10),
)
net = net.cuda().eval().to(memory_format=torch.channels_last)
step = torch.compile(net)
with torch.no_grad(), torch.autocast("cuda", torch.float16):
    print(
        step(torch.randn(8, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last))
        .float()
        .sum()
        .item()
    )
