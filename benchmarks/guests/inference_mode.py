"""Inference mode, no_grad and grad, one function under each."""

import torch

f = torch.compile(lambda x: (x * 2).sin())
x = torch.ones(3, requires_grad=True)
with torch.inference_mode():
    out = f(x)
    print(out.is_inference(), out.requires_grad)
with torch.no_grad():
    print(f(x).requires_grad, f(out).sum().item().hex())
print(f(x).requires_grad, torch.is_grad_enabled())
