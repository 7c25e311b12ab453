import torch

torch._dynamo.config.recompile_limit = 2


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = 1

    def forward(self, x):
        if self.factor % 2:
            x = x + 1
        return x * self.factor


model = Scale()
step = torch.compile(model, fullgraph=True, dynamic=False)
for n in range(2, 7):
    step(torch.ones(n))
