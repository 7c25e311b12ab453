"""Generators, closures that change, global state, keyword arguments and defaults."""

import torch

calls = 0


def make(scale):
    history = []

    @torch.compile
    def step(x, *, shift=1.0, **more):
        global calls
        calls += 1
        history.append(float(len(history)))
        return sum(y * scale for y in (x + i for i in range(3))) + shift + sum(more.values())

    return step, history


step, history = make(2.0)
for i in range(3):
    print(step(torch.ones(2), shift=float(i), extra=i).tolist(), calls, history)
