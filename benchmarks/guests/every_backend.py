"""The debugging backends of torch give the same."""

import torch

x = torch.linspace(0, 1, 5)
for name in ("eager", "aot_eager", "aot_eager_decomp_partition", "inductor"):
    torch._dynamo.reset()
    y = x.clone().requires_grad_()
    out = torch.compile(lambda t: (t.sin() * t).sum(), backend=name)(y)
    out.backward()
    print(name, out.item().hex(), y.grad.sum().item().hex())
