import torch


class Graph(torch.nn.Module):
    def __init__(self, edges):
        super().__init__()
        self.register_buffer("edges", edges)
        self.lin = torch.nn.Linear(3, 3)

    def forward(self, x):
        values = torch.ones(self.edges.shape[1])
        adjacency = torch.sparse_coo_tensor(self.edges, values, (4, 4))
        return torch.sparse.mm(adjacency, self.lin(x))


torch.compile(Graph(torch.tensor([[0, 1, 2], [1, 2, 3]])), fullgraph=True)(torch.randn(4, 3))
