"""The optimizer's step is compiled, its learning rate a tensor that a schedule changes."""

import torch

torch.manual_seed(0)
net = torch.nn.Linear(5, 3)
optimizer = torch.optim.Adam(net.parameters(), lr=torch.tensor(0.1))
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=3)


@torch.compile(fullgraph=False)
def step():
    optimizer.step()
    schedule.step()


for _ in range(3):
    net(torch.ones(2, 5)).square().sum().backward()
    step()
    optimizer.zero_grad()
    print(float(optimizer.param_groups[0]["lr"]).hex(), net.weight.sum().item().hex())
