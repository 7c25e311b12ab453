"""A model made on the meta device, given memory and numbers later, and run under a default device."""

import torch

torch.set_default_device("meta")
net = torch.nn.Sequential(
    torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4)
)
net.to_empty(device="cpu")
numbers = torch.Generator("cpu").manual_seed(0)
for parameter in net.parameters():
    with torch.no_grad():
        parameter.copy_(torch.randn(parameter.shape, generator=numbers, device="cpu") / 4)
step = torch.compile(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    x = torch.randn(8, 16, generator=numbers, device="cpu")
    loss = step(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
