import torch


class Energy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

    def forward(self, x):
        energy = self.net(x).sum()
        energy.backward()
        return energy


torch.compile(Energy(), fullgraph=True)(torch.randn(4, 3))
