import torch


class Checkpointed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x):
        for i, block in enumerate(self.blocks):
            x = block(x).relu()
            if i == 1:
                torch._dynamo.graph_break()
        return x


torch.compile(Checkpointed(), fullgraph=True)(torch.randn(2, 4))
