import torch


class Sparse(torch.nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k
        self.score = torch.nn.Linear(8, 1)

    def forward(self, x):
        s = self.score(x).squeeze(-1)
        keep = torch.nonzero(s > 0).squeeze(-1)
        if len(keep) == 0:
            return x.sum(0)
        picked = x[keep]
        return picked.sum(0) * self.k


torch.compile(Sparse(2), fullgraph=True)(torch.randn(5, 8))
