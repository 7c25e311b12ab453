"""A convolution in channels-last memory keeps its strides."""

import torch

torch.manual_seed(0)
net = torch.nn.Conv2d(3, 4, 3, padding=1).to(memory_format=torch.channels_last)
forward = torch.compile(lambda x: torch.relu(net(x)))
y = forward(torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last))
y.sum().backward()
print(y.stride(), y.is_contiguous(memory_format=torch.channels_last), net.weight.grad.sum().item().hex())
