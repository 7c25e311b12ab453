"""A small training script that is fine in eager and breaks under torch.compile.

The bug is planted on purpose (see `break_the_compiler`), so that it is there in every release.
"""

import torch
import torch.nn.functional as F


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Classifier(torch.nn.Module):
    def __init__(self, width=32, depth=3, classes=10):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(depth))
        self.head = torch.nn.Linear(width, classes)

    def forward(self, x, target):
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x), target)


def break_the_compiler():
    """Switches on a bug that PyTorch ships for testing debuggers: C++ code for relu that no compiler accepts."""
    from torch._inductor import config

    config.cpp.inject_relu_bug_TESTING_ONLY = "compile_error"


def main():
    torch.manual_seed(0)
    break_the_compiler()
    model = torch.compile(Classifier())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        loss = model(torch.randn(16, 32), torch.randint(10, (16,)))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
