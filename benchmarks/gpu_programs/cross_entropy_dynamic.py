"""A cross entropy over a vocabulary with a dynamic batch; a logarithm fails in its lowering."""

# fault aten.log.default:raise
# right inductor log
import torch


@torch.compile(dynamic=True)
def loss(hidden, head, target):
    return torch.nn.functional.cross_entropy((hidden @ head).float(), target)


torch.manual_seed(0)
head = torch.randn(64, 2000, device="cuda", dtype=torch.bfloat16)
for batch in (33, 48):
    hidden = torch.randn(batch, 64, device="cuda", dtype=torch.bfloat16)
    print(loss(hidden, head, torch.randint(0, 2000, (batch,), device="cuda")).item())
