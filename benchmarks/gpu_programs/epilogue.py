"""A matrix product by a template of max-autotune, with a wrong relu fused into it: the epilogue."""

# check
# right inductor relu
import torch
import torch._inductor.config as config

config.triton.inject_relu_bug_TESTING_ONLY = "accuracy"
config.max_autotune_gemm_backends = "TRITON"
config.max_autotune_gemm_search_space = "DEFAULT"


@torch.compile(mode="max-autotune-no-cudagraphs")
def f(x, w):
    return torch.relu(x @ w - 1)


torch.manual_seed(0)
x, w = (torch.randn(256, 256, device="cuda", dtype=torch.bfloat16) for _ in range(2))
print(f(x, w).float().sum().item())
