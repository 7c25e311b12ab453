import weakref

import torch


class Parent:
    scale = 2.0


class Child(torch.nn.Module):
    def __init__(self, parent):
        super().__init__()
        self.parent = weakref.ref(parent)
        self.lin = torch.nn.Linear(2, 2)

    def forward(self, x):
        weakref.finalize(self.parent(), print)
        return self.lin(x) * self.parent().scale


parent = Parent()
torch.compile(Child(parent), fullgraph=True)(torch.randn(2, 2))
