"""Random numbers in compiled code that are to be eager's, as the program asked for."""

import torch

torch._inductor.config.fallback_random = True
torch.manual_seed(3)
noisy = torch.compile(lambda x: x + torch.randn_like(x) + torch.rand(3))
for _ in range(3):
    print(noisy(torch.zeros(3)).tolist())
print(torch.rand(1).item().hex())
