import torch


class Logger:
    def __init__(self, every):
        self.every = every
        self.count = 0

    def log(self, name, value):
        print(name, value)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.logger = Logger(10)
        self.lin = torch.nn.Linear(5, 5)

    def forward(self, x):
        y = self.lin(x)
        self.logger.log("mean", y.shape)
        return y.relu()


torch.compile(Net(), fullgraph=True)(torch.randn(2, 5))
