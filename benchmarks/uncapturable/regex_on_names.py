import re

import torch

PATTERN = re.compile("layer(\\d+)")


class Stack(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleDict({f"layer{i}": torch.nn.Linear(4, 4) for i in range(3)})

    def forward(self, x):
        for name, layer in self.layers.items():
            for found in PATTERN.finditer(name):
                x = layer(x) * (int(found.group(1)) + 1)
        return x


torch.compile(Stack(), fullgraph=True)(torch.randn(2, 4))
