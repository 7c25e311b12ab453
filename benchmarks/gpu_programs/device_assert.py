"""An embedding is asked for a row that it does not have, in the second call."""

# right program ids
import torch

table = torch.nn.Embedding(100, 16).cuda()


@torch.compile
def look(ids):
    return table(ids).mean(-1) * 2


for step in range(3):
    ids = torch.arange(64, device="cuda")
    if step == 1:
        ids[7] = 140
    found = look(ids)
print(found.sum().item())
