"""Results of a CUDA graph are kept in a list and used after the next calls."""

# right program kept.append
import torch

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).cuda()
forward = torch.compile(net, mode="reduce-overhead")
kept = []
with torch.no_grad():
    for _ in range(6):
        kept.append(forward(torch.randn(16, 64, device="cuda")))
print(torch.stack(kept).sum().item())
