"""Four micro batches for each step of the optimizer, the last one smaller; gradients clipped."""

import torch

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
loss_of = torch.compile(lambda x: net(x).square().mean())
data = torch.randn(14, 6)
for epoch in range(2):
    for batch in data.split(4):
        (loss_of(batch) / 4).backward()
    norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    print(epoch, norm.item().hex())
