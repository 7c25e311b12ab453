"""Forward-mode products and a Hessian, compiled."""

import torch
from torch.func import hessian, jvp


def energy(t):
    return (t.sin() * t).sum()


x = torch.linspace(0.1, 1, 4)
product = torch.compile(lambda t, v: jvp(energy, (t,), (v,)))
print([value.item().hex() for value in product(x, torch.ones(4))])
print(torch.compile(hessian(energy))(x).diagonal().sum().item().hex())
