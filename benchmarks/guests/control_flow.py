"""Branches, loops and scans that stay in the graph."""

import torch
from torch._higher_order_ops import scan, while_loop


@torch.compile(fullgraph=True)
def f(x):
    y = torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (x,))
    n, y = while_loop(lambda n, t: n < 3, lambda n, t: (n + 1, t * 2), (torch.tensor(0), y))
    total, all_of_them = scan(lambda c, t: (c + t, c * t), torch.zeros(()), y)
    return n, total, all_of_them


with torch.no_grad():
    for sign in (1.0, -1.0):
        print([value.sum().item() for value in f(sign * torch.ones(3))])
