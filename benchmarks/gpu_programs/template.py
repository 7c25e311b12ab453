"""A matrix product of max-autotune whose Triton template is wrong; ATen's product would be right."""

# check
# fault template.mm:wrong
# right inductor template
import torch
import torch._inductor.config as config

config.max_autotune_gemm_backends = "TRITON"


@torch.compile(mode="max-autotune-no-cudagraphs")
def f(x, w):
    return (x.sin() @ w).cos()


torch.manual_seed(0)
x, w = (torch.randn(256, 256, device="cuda", dtype=torch.bfloat16) for _ in range(2))
print(f(x, w).float().sum().item())
