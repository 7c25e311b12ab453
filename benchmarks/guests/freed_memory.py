"""Tensors that the program lets go are gone."""

import gc
import weakref

import torch

f = torch.compile(lambda x: (x * 2).sum())
alive = []
for _ in range(5):
    x = torch.ones(1000, requires_grad=True)
    loss = f(x)
    loss.backward()
    alive += [weakref.ref(x), weakref.ref(loss)]
    del x, loss
gc.collect()
print(sum(reference() is not None for reference in alive))
