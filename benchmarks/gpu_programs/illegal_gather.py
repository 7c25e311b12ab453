"""A gather without the check of its index reads far outside; the program goes on for some calls."""

# right program index
import torch
import torch._inductor.config as config

config.assert_indirect_indexing = False


@torch.compile
def gather(table, index):
    return table[index].tanh() + 1


table = torch.randn(1024, device="cuda")
for step in range(3):
    index = torch.arange(256, device="cuda")
    if step == 1:
        index[9] = 1 << 38
    result = gather(table, index)
print(result.sum().item())
