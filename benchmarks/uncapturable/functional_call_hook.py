import torch


def hook(module, args, output):
    if output.sum().item() > 1e6:
        raise RuntimeError("exploded")
    return output


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(3, 3)
        self.b = torch.nn.Linear(3, 3)
        self.a.register_forward_hook(hook)

    def forward(self, x):
        return self.b(self.a(x).tanh())


torch.compile(Block(), fullgraph=True)(torch.randn(2, 3))
