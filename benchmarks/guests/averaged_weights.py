"""An exponential moving average of the weights, updated by compiled foreach operations."""

import torch

torch.manual_seed(0)
net, shadow = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
shadow.load_state_dict(net.state_dict())


@torch.compile
@torch.no_grad()
def average():
    torch._foreach_lerp_(list(shadow.parameters()), list(net.parameters()), 0.1)


for i in range(3):
    with torch.no_grad():
        net.weight.add_(i)
    average()
    print(shadow.weight.sum().item().hex(), shadow.weight.requires_grad)
