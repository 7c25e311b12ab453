"""A recurrent step under CUDA graphs; its states are kept for later."""

# right program
import torch

cell = torch.nn.GRUCell(32, 32).cuda()


@torch.compile(mode="reduce-overhead")
def step(x, state):
    return cell(x, state)


state = torch.zeros(8, 32, device="cuda")
states = []
with torch.no_grad():
    for _ in range(6):
        state = step(torch.randn(8, 32, device="cuda"), state)
        states.append(state)
print(sum(each.sum() for each in states).item())
