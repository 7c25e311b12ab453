import numpy as np
import torch


class Augment:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def __call__(self, x):
        angle = self.rng.uniform(0, 1)
        return x * float(angle)


augment = Augment(3)


def step(x):
    y = augment(x).cos()
    return y.sum()


torch.compile(step, fullgraph=True)(torch.ones(3, 3))
