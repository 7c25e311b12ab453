"""Forward hooks and full backward hooks on a compiled model's layers."""

import torch

torch.manual_seed(0)
seen = []
net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
net[0].register_forward_hook(lambda module, args, out: out * 2)
net[0].register_forward_pre_hook(lambda module, args: seen.append("pre") or None)
net[2].register_full_backward_hook(lambda module, given, wanted: seen.append(tuple(wanted[0].shape)))
forward = torch.compile(net)
for _ in range(2):
    forward(torch.ones(2, 3)).sum().backward()
print(seen, net[0].weight.grad.sum().item().hex())
