import torch

TEMPLATE = "def inner(t):\n    return t + {n}\n"


def build(n):
    scope = {}
    exec(TEMPLATE.format(n=n), scope)
    return scope["inner"]


def step(x):
    return build(3)(x).sqrt()


torch.compile(step, fullgraph=True)(torch.ones(4))
