import torch


def chunks(x, size):
    for start in range(0, x.shape[0], size):
        yield x[start : start + size]


def encode(x):
    source = chunks(x, 2)
    first = next(source)
    return first * (2 if source.gi_frame else 1)


torch.compile(encode, fullgraph=True, backend="eager")(torch.randn(6, 3))
