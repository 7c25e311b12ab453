"""fp16 autocast with a scaler on the GPU."""
# gpu

import torch

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).cuda()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
scaler = torch.amp.GradScaler("cuda")
step = torch.compile(lambda x, y: torch.nn.functional.cross_entropy(net(x), y))
x, y = torch.randn(16, 32, device="cuda"), torch.arange(16, device="cuda") % 8
for _ in range(4):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = step(x, y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print(loss.item().hex())
