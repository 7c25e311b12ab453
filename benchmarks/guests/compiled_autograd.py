"""The backward pass is captured as a whole."""

import torch

torch._dynamo.config.compiled_autograd = True
torch.manual_seed(0)
net = torch.nn.Linear(3, 3)


@torch.compile
def step(x):
    loss = net(x).sin().sum()
    loss.backward()
    return loss.detach()


for _ in range(2):
    print(step(torch.ones(2, 3)).item().hex(), net.weight.grad.sum().item().hex())
