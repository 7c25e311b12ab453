import torch


class Checked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(4, 2)

    def forward(self, x, mask):
        if torch.isnan(x).any():
            raise ValueError("NaN in the input")
        return self.lin(x * mask)


torch.compile(Checked(), fullgraph=True)(torch.randn(2, 4), torch.ones(4))
