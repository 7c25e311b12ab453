"""Hooks on tensors, inside and outside of compiled code; gradients kept on the way."""

import torch

seen = []


@torch.compile
def f(x):
    y = x.sin()
    y.register_hook(lambda g: g * 3)
    return y * 2


x = torch.ones(3, requires_grad=True)
x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum().item().hex()))
out = f(x)
out.register_hook(lambda g: seen.append(g.sum().item()) or g)
out.retain_grad()
out.sum().backward()
print(seen, x.grad.tolist(), out.grad.tolist())
