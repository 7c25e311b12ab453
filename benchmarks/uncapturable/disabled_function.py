import torch


@torch.compiler.disable
def normalise(x):
    return (x - x.mean()) / x.std()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)

    def forward(self, image):
        h = self.conv(normalise(image))
        return h.flatten(1).mean(1)


torch.compile(Model(), fullgraph=True)(torch.randn(1, 3, 8, 8))
