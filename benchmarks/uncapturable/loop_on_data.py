import torch


def relax(x, tolerance):
    steps = 0
    while (x.abs() > tolerance).any():
        x = x * 0.5
        steps += 1
    return x, steps


class Solver:
    def __init__(self, tolerance):
        self.tolerance = tolerance
        self.scale = torch.ones(4)

    def solve(self, x):
        return relax(x * self.scale, self.tolerance)


solver = Solver(0.1)
run = torch.compile(solver.solve, fullgraph=True, backend="eager")
print(run(torch.rand(4) + 1))
