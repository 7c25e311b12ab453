"""Quantisation-aware training with torch's fake quantisation."""

import torch
from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver

torch.manual_seed(0)
fake = FakeQuantize(MovingAverageMinMaxObserver, quant_min=0, quant_max=255)
layer = torch.nn.Linear(4, 3)
step = torch.compile(lambda x: layer(fake(x)).sum())
for i in range(3):
    loss = step(torch.linspace(-1, 1 + i, 8).reshape(2, 4))
    loss.backward()
    print(loss.item().hex(), fake.scale.item().hex())
