"""bfloat16 autocast around forward and loss, a disabled scaler, two parameter groups."""

import torch

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
step = torch.compile(lambda x, y: torch.nn.functional.cross_entropy(net(x), y))
optimizer = torch.optim.AdamW([{"params": net[0].parameters(), "lr": 1e-2}, {"params": net[2].parameters()}])
scaler = torch.amp.GradScaler("cpu", enabled=False)
x, y = torch.randn(6, 8), torch.arange(6) % 4
for _ in range(4):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = step(x, y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print(loss.dtype, loss.item().hex())
